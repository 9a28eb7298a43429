"""torch's variable-length attention kernel, by one name in all versions that have it."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor

_SUMMED_ALIKE = 128
"""Keys up to which the backward kernel adds at most two parts of a query's gradient: the order is all one."""


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


def varlen_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, longest: tuple[int, int], window: int | None
) -> tuple[Tensor, ...]:
    """The same, beside any graph: the result, and what `varlen_backward` needs of it (its `weights`)."""
    causal, back = window is None, -1 if window is None else window - 1
    found: Any = torch.ops.aten._flash_attention_forward(
        q, k, v, cu_q, cu_k, *longest, 0.0, causal, False, window_size_left=back, window_size_right=0
    )
    out, lse, random, unused, _ = found
    return out, lse, random, unused


def varlen_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    weights: tuple[Tensor, ...],
    cu_q: Tensor,
    cu_k: Tensor,
    longest: tuple[int, int],
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    causal, back = window is None, -1 if window is None else window - 1
    lse, random, unused = weights
    with _in_order(longest[1]):
        found: Any = torch.ops.aten._flash_attention_backward(
            grad, q, k, v, out, lse, cu_q, cu_k, *longest, 0.0, causal, random, unused,
            window_size_left=back, window_size_right=0,
        )  # fmt: skip
    dq, dk, dv = found
    return dq, dk, dv


class Varlen(torch.autograd.Function):
    """`varlen_forward` and `varlen_backward` for a graph that is recorded."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *where: Any) -> Tensor:
        out, *weights = varlen_forward(q, k, v, *where)
        ctx.save_for_backward(q, k, v, out, *weights)
        ctx.where = where
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, *weights = ctx.saved_tensors
        found = varlen_backward(grad, q, k, v, out, tuple(weights), *ctx.where)
        return *found, *(None for _ in ctx.where)


@contextmanager
def _in_order(keys: int) -> Iterator[None]:
    """What several parts of the kernel add up is added in the same order every time: results repeat."""
    if keys <= _SUMMED_ALIKE:
        yield
        return
    memory: Any = torch.utils.deterministic
    before = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("error")
    memory.fill_uninitialized_memory = False  # all of it is written anyway
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before[0])
        memory.fill_uninitialized_memory = before[1]


def offsets(lengths: object, device: torch.device) -> Tensor:
    """[n + 1] int32: where sequences of these lengths begin, packed."""
    counted = torch.as_tensor(lengths, dtype=torch.int32)
    return torch.nn.functional.pad(counted.cumsum(0, dtype=torch.int32), (1, 0)).to(device)
