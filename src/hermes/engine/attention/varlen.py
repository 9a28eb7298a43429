"""torch's variable-length attention kernel, outside autograd and for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

_ORDER_FREE_KEYS = 128
"""Up to so many keys the backward kernel adds at most two parts of a query's gradient: any order gives the
same sum."""


def varlen_forward(
    q: Tensor, k: Tensor, v: Tensor, cu_q: Tensor, cu_k: Tensor, longest: tuple[int, int], window: int | None
) -> tuple[Tensor, ...]:
    """Causal attention of packed sequences, aligned to the end of the keys; half precision only.

    q [Tq, heads, D], k and v [Tk, kv_heads, D]; `cu_*` [sequences + 1] int32 are the offsets of the
    sequences. Returns the output, and the tensors that `varlen_backward` needs (its `saved`).
    """
    causal, back = window is None, -1 if window is None else window - 1
    outputs: Any = torch.ops.aten._flash_attention_forward(
        q, k, v, cu_q, cu_k, *longest, 0.0, causal, False, window_size_left=back, window_size_right=0
    )
    out, lse, random, unused, _ = outputs
    return out, lse, random, unused


def varlen_backward(
    grad: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    saved: tuple[Tensor, ...],
    cu_q: Tensor,
    cu_k: Tensor,
    longest: tuple[int, int],
    window: int | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of q, k and v."""
    causal, back = window is None, -1 if window is None else window - 1
    lse, random, unused = saved
    with _deterministic(longest[1]):
        gradients: Any = torch.ops.aten._flash_attention_backward(
            grad, q, k, v, out, lse, cu_q, cu_k, *longest, 0.0, causal, random, unused,
            window_size_left=back, window_size_right=0,
        )  # fmt: skip
    dq, dk, dv = gradients
    return dq, dk, dv


class VarlenFunction(torch.autograd.Function):
    """`varlen_forward` and `varlen_backward` for autograd."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, *layout: Any) -> Tensor:
        out, *saved = varlen_forward(q, k, v, *layout)
        ctx.save_for_backward(q, k, v, out, *saved)
        ctx.layout = layout
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, out, *saved = ctx.saved_tensors
        gradients = varlen_backward(grad, q, k, v, out, tuple(saved), *ctx.layout)
        return *gradients, *(None for _ in ctx.layout)


@contextmanager
def _deterministic(keys: int) -> Iterator[None]:
    """Makes the kernel add partial gradients in a fixed order, so that results are reproducible."""
    if keys <= _ORDER_FREE_KEYS:
        yield
        return
    memory: Any = torch.utils.deterministic
    before = torch.get_deterministic_debug_mode(), memory.fill_uninitialized_memory
    torch.set_deterministic_debug_mode("error")
    memory.fill_uninitialized_memory = False  # the kernel writes all of it
    try:
        yield
    finally:
        torch.set_deterministic_debug_mode(before[0])
        memory.fill_uninitialized_memory = before[1]
