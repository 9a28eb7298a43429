"""A copy of the model whose matrices have an adapter merged in.

Training and sampling use the same rounded matrices, so that both compute the same function.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from torch import Tensor

from hermes.engine.lora.weights import LoraWeights
from hermes.engine.model.llama import GROUPS, LlamaBackbone
from hermes.engine.model.merge import MergeSite, merge_sites
from hermes.engine.spec import HEAD, Site


def _matrices(backbone: LlamaBackbone) -> Iterator[tuple[Site, Tensor]]:
    """Those that an adapter can change."""
    for index, layer in enumerate(backbone.layers):
        for name in GROUPS:
            yield (index, name), getattr(layer, name)
    yield HEAD, backbone.head_weight


def copy_bytes(backbone: LlamaBackbone) -> int:
    """Size of the matrices that a copy does not share with the base model."""
    return sum(matrix.nbytes for _, matrix in _matrices(backbone))


def clone_matrices(base: LlamaBackbone) -> LlamaBackbone:
    """A backbone with copied matrices; embedding and norms are shared."""
    layers = tuple(
        replace(layer, **{name: getattr(layer, name).clone() for name in GROUPS}) for layer in base.layers
    )
    return replace(base, layers=layers, head_weight=base.head_weight.clone())


def merge_into(buffers: LlamaBackbone, base: LlamaBackbone, weights: LoraWeights) -> None:
    """Writes the merged weights into existing buffers."""
    sites = []
    for (site, out), (_, matrix) in zip(_matrices(buffers), _matrices(base), strict=True):
        group = weights.groups.get(site)
        if group is None:
            out.copy_(matrix)
        else:
            sites.append(MergeSite(matrix, out, group, base.outputs(site)))
    merge_sites(sites)
