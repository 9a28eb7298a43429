"""One adapter's matrices as the training pass applies them: for each group of linears its A matrices stacked,
and its B matrices on the diagonal of one matrix.

All layers are alike, so where a parameter goes is planned for one layer and holds for all: putting the
parameters there, and taking the gradients back, is one operation each, whatever the number of layers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.weights import LoraGroup, LoraPart, LoraWeights
from hermes.engine.model.llama import GROUPS, LlamaLayer
from hermes.engine.spec import HEAD, ModelSpec
from hermes.engine.types import Ints

_WIDE = ("qkv", "gate_up", "down")
"""The groups whose product takes the adapter's columns with it."""
_SMALL_BYTES = 1 << 30


class LoraPair(NamedTuple):
    a: Tensor
    """[sum of ranks, in]"""
    b: Tensor
    """[sum of outs, sum of ranks]"""
    wide: Tensor | None = None
    """The group's frozen weight with b behind it, if that is made already."""

    def beside(self, weight: Tensor) -> Tensor:
        """[sum of outs, in + sum of ranks]: the group's frozen weight with b behind it."""
        return torch.cat((weight, self.b), dim=1) if self.wide is None else self.wide


@dataclass(frozen=True, slots=True)
class _Place:
    """One group's matrices in a layer's row of the spread form, one after the other."""

    name: str
    a: tuple[int, int]
    b: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class LayerLayout:
    layers: int
    flat: int
    """Parameters of a layer in the adapter's buffer."""
    spread: int
    """Numbers of a layer in the spread form; those of no parameter are zero."""
    places: tuple[_Place, ...]
    cells: Tensor
    """[flat]: where each parameter lies in the spread form."""
    is_a: Tensor
    """[flat], fp32: 1 for those of A matrices."""

    def put(self, adapter: Adapter, dtype: torch.dtype) -> Tensor:
        """[layers, spread]: the adapter's parameters, its scale applied to A."""
        flat = self._scaled(self._layers_of(adapter.parameters.detach()), adapter)
        blank = torch.zeros(self.layers, self.spread, dtype=dtype, device=flat.device)
        return blank.index_copy_(1, self.cells, flat.to(dtype))

    def take(self, spread: Tensor, adapter: Adapter, gradient: Tensor) -> None:
        """Adds the gradients of the spread form to those of the parameters."""
        found = spread.index_select(1, self.cells).float()
        self._layers_of(gradient).add_(self._scaled(found, adapter))

    def pairs(self, spread: Tensor) -> list[dict[str, LoraPair]]:
        """Per layer, each trained group's matrices, as views."""
        shapes = [shape for place in self.places for shape in (place.a, place.b)]
        pieces = torch.split(spread, [rows * columns for rows, columns in shapes], dim=1)
        # All layers of a matrix at once: a call for each would keep the device waiting.
        lines = [
            piece.view(self.layers, *shape).unbind() for piece, shape in zip(pieces, shapes, strict=True)
        ]
        names = [place.name for place in self.places]
        return [
            {name: LoraPair(a, b) for name, a, b in zip(names, matrices[::2], matrices[1::2], strict=True)}
            for matrices in zip(*lines, strict=True)
        ]

    def _layers_of(self, flat: Tensor) -> Tensor:
        return flat[: self.layers * self.flat].view(self.layers, self.flat)

    def _scaled(self, flat: Tensor, adapter: Adapter) -> Tensor:
        scale = adapter.config.alpha / adapter.config.rank
        return flat if scale == 1.0 else flat * (1.0 + (scale - 1.0) * self.is_a)


def side_by_side(pairs: list[dict[str, LoraPair]], layers: Sequence[LlamaLayer]) -> list[dict[str, LoraPair]]:
    """The pairs of a small model with their wide matrices, which are made for all layers at once.

    A call for each layer would keep the device waiting. A large model has more to do in a layer than its host
    has, and no memory to spare: there they are made when they are needed.
    """
    names = [name for name in _WIDE if name in pairs[0]]
    weights = {name: [getattr(layer, name) for layer in layers] for name in names}
    if sum(one.nbytes for some in weights.values() for one in some) > _SMALL_BYTES:
        return pairs
    made = [dict(some) for some in pairs]
    for name in names:
        b = torch.stack([some[name].b for some in pairs])
        wide = torch.cat((torch.stack(weights[name]), b), dim=2).unbind()
        for some, one in zip(made, wide, strict=True):
            some[name] = some[name]._replace(wide=one)
    return made


def layout_of(adapter: Adapter) -> LayerLayout | None:
    """None where the adapter leaves all layers alone."""
    config = adapter.config
    device = adapter.gradient.device
    return _plan(adapter.spec, config.rank, config.train_attn, config.train_mlp, device)


def head_of(adapter: Adapter, dtype: torch.dtype) -> LoraWeights:
    """The output projection's share of the adapter alone."""
    if not adapter.config.train_unembed:
        return LoraWeights({})
    flat = adapter.parameters.detach()
    a, b = (
        flat[slot.start : slot.start + slot.size].view(slot.shape).to(dtype) for slot in adapter.slots[-2:]
    )
    return LoraWeights({HEAD: LoraGroup(a, (LoraPart(b, adapter.config.alpha / adapter.config.rank),))})


@lru_cache(maxsize=8)
def _plan(
    spec: ModelSpec, rank: int, train_attn: bool, train_mlp: bool, device: torch.device
) -> LayerLayout | None:
    wanted = {"attn": train_attn, "mlp": train_mlp}
    places: list[_Place] = []
    cells: list[Ints] = []
    kinds: list[Ints] = []
    start = 0
    for name in GROUPS:
        linears = [spec.linears[site] for site in spec.groups[0, name]]
        if not wanted[linears[0].part]:
            continue
        a = (rank * len(linears), linears[0].inputs)
        b = (sum(linear.outputs for linear in linears), a[0])
        of_a = start + np.arange(a[0] * a[1])
        of_b = _diagonal(start + len(of_a), [linear.outputs for linear in linears], rank)
        places.append(_Place(name, a, b))
        cells += [of_a, of_b]
        kinds += [np.ones_like(of_a), np.zeros_like(of_b)]
        start += a[0] * a[1] + b[0] * b[1]
    if not places:
        return None
    where = torch.as_tensor(np.concatenate(cells), device=device)
    is_a = torch.as_tensor(np.concatenate(kinds), device=device).float()
    return LayerLayout(spec.layers, len(where), start, tuple(places), where, is_a)


def _diagonal(start: int, outputs: list[int], rank: int) -> Ints:
    """The cells of B matrices on the diagonal of a matrix that begins at `start`, matrix by matrix."""
    width = rank * len(outputs)
    tops = np.cumsum([0, *outputs[:-1]])
    return np.concatenate(
        [
            (start + (top + np.arange(height))[:, None] * width + number * rank + np.arange(rank)).ravel()
            for number, (top, height) in enumerate(zip(tops, outputs, strict=True))
        ]
    )
