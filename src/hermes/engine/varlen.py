"""torch's variable-length attention kernel, by one name in all versions that have it."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
from torch import Tensor


def varlen(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, longest: tuple[int, int], window: int | None
) -> Tensor:
    """Causal attention of packed sequences, aligned to the end of the keys; half precision only.

    q [Tq, heads, D], k and v [Tk, kv_heads, D]; `cu_*` [sequences + 1] int32 are where sequences begin.
    """
    from torch.nn.attention.varlen import varlen_attn

    back = -1 if window is None else window - 1
    # Older versions take shared key heads without being told.
    gqa: dict[str, Any] = {"enable_gqa": True} if _names_gqa() and q.shape[1] != k.shape[1] else {}
    out: Any = varlen_attn(q, k, v, cu_q, cu_k, *longest, window_size=(back, 0), **gqa)
    attended: Tensor = out
    return attended


@cache
def _names_gqa() -> bool:
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters


def offsets(lengths: object, device: torch.device) -> Tensor:
    """[n + 1] int32: where sequences of these lengths begin, packed."""
    counted = torch.as_tensor(lengths, dtype=torch.int32)
    return torch.nn.functional.pad(counted.cumsum(0, dtype=torch.int32), (1, 0)).to(device)
