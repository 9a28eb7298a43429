"""Attention of a training pass with the sampler's kernel, so that both give the same bits.

Every query is a row of `attend_rows`, over keys that lie side by side as in the sampler's pool. The backward
pass is that of torch's variable-length kernel, which computes its own output again: gradients need not be
those of the same bits.
"""

from __future__ import annotations

import torch
from torch import Tensor

from hermes.engine.attention.packed import pack_windows
from hermes.engine.attention.packed_varlen import VarlenAttention
from hermes.engine.attention.packing import Pack
from hermes.engine.kernels.decode import attend_rows
from hermes.engine.spec import ModelSpec


class InvariantAttention(VarlenAttention):
    """`PackedAttention` in half precision on CUDA, batch-invariant."""

    def __init__(self, pack: Pack, spec: ModelSpec, device: torch.device) -> None:
        super().__init__(pack, pack_windows(pack, spec), device)
        self._key_starts = self._offsets[1][self._node].long()
        """[T]: where the keys that each row attends to begin."""
        self._lengths = self._position.long()

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        out = attend_rows(
            q.contiguous(),
            k.contiguous(),
            v.contiguous(),
            self._key_starts,
            self._lengths,
            self._windows[layer],
            split=False,
        )
        return out, ()

    def backward(
        self,
        layer: int,
        grad: Tensor,
        heads: tuple[Tensor, Tensor, Tensor],
        out: Tensor,
        saved: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor, Tensor]:
        again, saved = super().forward(layer, *heads)
        return super().backward(layer, grad, heads, again, saved)
