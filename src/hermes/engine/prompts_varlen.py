"""Attention of prompts on CUDA: pieces of any length in one call of torch's variable-length kernel."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from hermes.engine.backbone import Attend
from hermes.engine.kv import KvPool
from hermes.engine.runner import Piece
from hermes.engine.spec import ModelSpec
from hermes.engine.varlen import offsets, varlen


def prompts_attend(spec: ModelSpec, pool: KvPool, cells: Tensor, pieces: Sequence[Piece]) -> Attend:
    """Each piece attends, causally, to what its slot holds and to itself.

    Where some of them continue, the keys and values of all are read back from the pool.
    """
    own = np.array([len(piece.tokens) for piece in pieces])
    seen = own + np.array([piece.offset for piece in pieces])
    device = pool.keys.device
    cu_q, cu_k = offsets(own, device), offsets(seen, device)
    longest = int(own.max()), int(seen.max())
    continued = bool((seen > own).any())
    where = torch.as_tensor(
        np.concatenate([np.arange(count) + piece.cell for count, piece in zip(seen, pieces, strict=True)])
        if continued
        else np.zeros(0, np.int64),
        device=device,
    )

    def attend(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        pool.write(layer, cells, k, v)
        if continued:
            k, v = pool.keys[layer].index_select(0, where), pool.values[layer].index_select(0, where)
        return varlen(q, k, v, cu_q, cu_k, longest, spec.windows[layer])

    return attend
