"""An adapter's matrices in the layout of the manual training pass.

For each group of linears, the A matrices are stacked, and the B matrices are one block-diagonal matrix. All
layers have the same shape, so the layout is planned for one layer and used for all: filling it with the
parameters, and reading the gradients back, is one operation each, whatever the number of layers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from hermes.engine.lora.adapter import Adapter
from hermes.engine.model.llama import GROUPS
from hermes.engine.spec import ModelSpec
from hermes.engine.types import Ints


class LoraPair(NamedTuple):
    a: Tensor
    """[sum of ranks, in]"""
    b: Tensor
    """[sum of outs, sum of ranks]"""


@dataclass(frozen=True, slots=True)
class _GroupShape:
    """The shapes of one group's matrices, which follow each other in a layer's row of the layout."""

    name: str
    a: tuple[int, int]
    b: tuple[int, int]


@dataclass(frozen=True, slots=True, eq=False)
class LayerLayout:
    layers: int
    parameters: int
    """Parameters of a layer in the adapter's flat buffer."""
    width: int
    """Elements of a layer's row; those that belong to no parameter are zero."""
    groups: tuple[_GroupShape, ...]
    indices: Tensor
    """[parameters]: the index of each parameter in a layer's row."""
    is_a: Tensor
    """[parameters], fp32: 1 for those of A matrices."""

    def fill(self, adapter: Adapter, dtype: torch.dtype) -> Tensor:
        """[layers, width]: the adapter's parameters, with its scale applied to A."""
        flat = self._scale(self._by_layer(adapter.parameters.detach()), adapter)
        zeros = torch.zeros(self.layers, self.width, dtype=dtype, device=flat.device)
        return zeros.index_copy_(1, self.indices, flat.to(dtype))

    def add_gradients(self, grads: Tensor, adapter: Adapter, gradient: Tensor) -> None:
        """Adds gradients in this layout, [layers, width], to the adapter's flat gradient."""
        flat = grads.index_select(1, self.indices).float()
        self._by_layer(gradient).add_(self._scale(flat, adapter))

    def pairs(self, rows: Tensor) -> list[dict[str, LoraPair]]:
        """Per layer, each trained group's matrices, as views of the rows [layers, width]."""
        shapes = [shape for group in self.groups for shape in (group.a, group.b)]
        parts = torch.split(rows, [height * width for height, width in shapes], dim=1)
        # All layers of a matrix in one call: a call per layer would leave the device idle.
        by_matrix = [
            part.view(self.layers, *shape).unbind() for part, shape in zip(parts, shapes, strict=True)
        ]
        names = [group.name for group in self.groups]
        return [
            {name: LoraPair(a, b) for name, a, b in zip(names, matrices[::2], matrices[1::2], strict=True)}
            for matrices in zip(*by_matrix, strict=True)
        ]

    def _by_layer(self, flat: Tensor) -> Tensor:
        return flat[: self.layers * self.parameters].view(self.layers, self.parameters)

    def _scale(self, flat: Tensor, adapter: Adapter) -> Tensor:
        scale = adapter.config.alpha / adapter.config.rank
        return flat if scale == 1.0 else flat * (1.0 + (scale - 1.0) * self.is_a)


def adapter_layout(adapter: Adapter) -> LayerLayout | None:
    """None if the adapter trains no layer, only the LM head."""
    config = adapter.config
    device = adapter.gradient.device
    return _plan(adapter.spec, config.rank, config.train_attn, config.train_mlp, device)


@lru_cache(maxsize=8)
def _plan(
    spec: ModelSpec, rank: int, train_attn: bool, train_mlp: bool, device: torch.device
) -> LayerLayout | None:
    trained = {"attn": train_attn, "mlp": train_mlp}
    groups: list[_GroupShape] = []
    indices: list[Ints] = []
    is_a: list[Ints] = []
    start = 0
    for name in GROUPS:
        linears = [spec.linears[site] for site in spec.groups[0, name]]
        if not trained[linears[0].part]:
            continue
        a = (rank * len(linears), linears[0].inputs)
        b = (sum(linear.outputs for linear in linears), a[0])
        a_indices = start + np.arange(a[0] * a[1])
        b_indices = _diagonal(start + len(a_indices), [linear.outputs for linear in linears], rank)
        groups.append(_GroupShape(name, a, b))
        indices += [a_indices, b_indices]
        is_a += [np.ones_like(a_indices), np.zeros_like(b_indices)]
        start += a[0] * a[1] + b[0] * b[1]
    if not groups:
        return None
    flat_indices = torch.as_tensor(np.concatenate(indices), device=device)
    return LayerLayout(
        layers=spec.layers,
        parameters=len(flat_indices),
        width=start,
        groups=tuple(groups),
        indices=flat_indices,
        is_a=torch.as_tensor(np.concatenate(is_a), device=device).float(),
    )


def _diagonal(start: int, outputs: list[int], rank: int) -> Ints:
    """Indices of B matrices on the diagonal of a matrix that begins at `start`, matrix by matrix."""
    width = rank * len(outputs)
    tops = np.cumsum([0, *outputs[:-1]])
    return np.concatenate(
        [
            (start + (top + np.arange(height))[:, None] * width + number * rank + np.arange(rank)).ravel()
            for number, (top, height) in enumerate(zip(tops, outputs, strict=True))
        ]
    )
