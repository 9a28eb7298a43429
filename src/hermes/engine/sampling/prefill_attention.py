"""Attention of prompts on CUDA: pieces of any length in one call of torch's variable-length kernel."""

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


class Prompts:
    """Pieces of prompts, packed. Each attends, causally, to what its slot holds and to itself."""

    def __init__(self, spec: ModelSpec, pool: KvPool, pieces: Sequence[PrefillChunk]) -> None:
        self._spec, self._pool = spec, pool
        own = np.array([len(piece.tokens) for piece in pieces])
        seen = own + np.array([piece.offset for piece in pieces])
        device = pool.keys.device
        self._ends = offsets(own, device), offsets(seen, device)
        self._longest = int(own.max()), int(seen.max())
        self._continued = bool((seen > own).any())
        """Some have a part of their prompt in the pool already."""
        cells = [np.arange(count) + piece.cell for count, piece in zip(seen, pieces, strict=True)]
        self._seen = torch.as_tensor(np.concatenate(cells), device=device)

    def attend(self, cells: Tensor) -> Attend:
        """For a backbone's own forward pass; new keys and values go to `cells`."""

        def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            self._pool.write(layer, cells, k, v)
            return self.gather(layer, q) if self._continued else self._varlen(layer, q, k, v)

        return attend

    def gather(self, layer: int, q: Tensor) -> Tensor:
        """What queries attend to, all of it in the pool."""
        keys, values = self._pool.keys[layer], self._pool.values[layer]
        return self._varlen(layer, q, keys.index_select(0, self._seen), values.index_select(0, self._seen))

    def _varlen(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return varlen(q, k, v, *self._ends, self._longest, self._spec.windows[layer])
