"""Prefill attention on CUDA: chunks of any length in one launch, with the bits of the decode step."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from torch import Tensor

from hermes.engine.attention.base import Attend
from hermes.engine.attention.kv_cache import KvPool
from hermes.engine.attention.query_blocks import query_blocks
from hermes.engine.kernels.attention import attend_blocks
from hermes.engine.sampling.runner import PrefillChunk
from hermes.engine.spec import ModelSpec


class PrefillAttention:
    """Packed prompt chunks. Each attends, causally, to the tokens in its slot and to itself."""

    def __init__(self, spec: ModelSpec, pool: KvPool, chunks: Sequence[PrefillChunk]) -> None:
        self._spec, self._pool = spec, pool
        lengths, slot_starts, offsets = np.array(
            [(len(chunk.tokens), chunk.slot_start, chunk.offset) for chunk in chunks]
        ).T
        heads_per_kv = spec.heads // spec.kv_heads
        self._blocks = query_blocks(lengths, slot_starts, offsets, heads_per_kv, pool.keys.device)

    def attend(self, kv_indices: Tensor) -> Attend:
        """For a backbone's own forward pass; new keys and values are stored at `kv_indices`."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._pool.write(layer, kv_indices, k, v)
            return self.from_pool(layer, q)

        return attend

    def from_pool(self, layer: int, q: Tensor) -> Tensor:
        """Attention output of the queries, whose keys and values are all in the pool."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        return attend_blocks(q, keys, values, self._blocks, self._spec.windows[layer])[0]
