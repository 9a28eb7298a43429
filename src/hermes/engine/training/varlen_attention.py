"""Attention of a training pass on CUDA, with the sampler's kernel forward and torch's backward.

One launch per layer and direction. Sampler and trainer give a query the same bits (`kernels.attention`); the
gradients are those of torch's variable-length kernel, given that output. Imported only where there is a CUDA
device.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hermes.engine.attention.packing import Pack
from hermes.engine.attention.query_blocks import query_blocks
from hermes.engine.attention.varlen import node_tree, sequence_offsets, shared_key_copies, varlen_backward
from hermes.engine.kernels.attention import attend_blocks
from hermes.engine.transfer import to_device


class VarlenAttention:
    """`PackedAttention` in half precision on CUDA."""

    def __init__(
        self, pack: Pack, windows: Sequence[int | None], heads_per_kv: int, device: torch.device
    ) -> None:
        tree = node_tree(pack)
        self._windows = windows
        self._longest = int(tree.query_lengths.max()), int(tree.key_lengths.max())
        offsets = sequence_offsets(tree.query_lengths), sequence_offsets(tree.key_lengths)
        query_offsets, key_offsets = to_device(offsets, device)
        self._offsets = query_offsets, key_offsets
        key_starts = np.cumsum(tree.key_lengths) - tree.key_lengths
        first_positions = tree.key_lengths - tree.query_lengths
        self._blocks = query_blocks(tree.query_lengths, key_starts, first_positions, heads_per_kv, device)
        self.copies = shared_key_copies(pack, tree, device)

    def forward(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        out, lse = attend_blocks(q, k, v, self._blocks, self._windows[layer], lse=True)
        return out, (lse,)

    def backward(
        self,
        layer: int,
        grad: Tensor,
        heads: tuple[Tensor, Tensor, Tensor],
        out: Tensor,
        saved: tuple[Tensor, ...],
    ) -> tuple[Tensor, Tensor, Tensor]:
        (lse,) = saved
        # The kernel asks for the state of dropout's random numbers, which it does not read without dropout.
        unused = lse.new_empty(2, dtype=torch.uint64), lse.new_empty(0, dtype=torch.uint64)
        return varlen_backward(
            grad, *heads, out, (lse, *unused), *self._offsets, self._longest, self._windows[layer]
        )
