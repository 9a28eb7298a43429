"""Prefill attention on CUDA: chunks of any length in one call of torch's variable-length kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hermes.engine.attention.base import Attend
from hermes.engine.attention.kv_cache import KvPool
from hermes.engine.attention.varlen import offsets, varlen
from hermes.engine.sampling.runner import PrefillChunk
from hermes.engine.spec import ModelSpec


class PrefillAttention:
    """Packed prompt chunks. Each attends, causally, to the tokens in its slot and to itself."""

    def __init__(self, spec: ModelSpec, pool: KvPool, chunks: Sequence[PrefillChunk]) -> None:
        self._spec, self._pool = spec, pool
        query_lengths = np.array([len(chunk.tokens) for chunk in chunks])
        key_lengths = query_lengths + np.array([chunk.offset for chunk in chunks])
        device = pool.keys.device
        self._offsets = offsets(query_lengths, device), offsets(key_lengths, device)
        self._longest = int(query_lengths.max()), int(key_lengths.max())
        self._continued = bool((key_lengths > query_lengths).any())
        """Some chunks have earlier tokens of their prompt in the pool."""
        indices = [
            np.arange(length) + chunk.slot_start for length, chunk in zip(key_lengths, chunks, strict=True)
        ]
        self._kv_indices = torch.as_tensor(np.concatenate(indices), device=device)

    def attend(self, kv_indices: Tensor) -> Attend:
        """For a backbone's own forward pass; new keys and values are stored at `kv_indices`."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._pool.write(layer, kv_indices, k, v)
            return self.from_pool(layer, q) if self._continued else self._varlen(layer, q, k, v)

        return attend

    def from_pool(self, layer: int, q: Tensor) -> Tensor:
        """Attention output of the queries, whose keys and values are all in the pool."""
        keys = self._pool.keys[layer].index_select(0, self._kv_indices)
        values = self._pool.values[layer].index_select(0, self._kv_indices)
        return self._varlen(layer, q, keys, values)

    def _varlen(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return varlen(q, k, v, *self._offsets, self._longest, self._spec.windows[layer])
