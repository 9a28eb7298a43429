"""The matrix products of a forward pass: torch's own, or batch-invariant ones (`kernels.invariant`)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None, *, invariant: bool = False) -> Tensor:
    if not invariant:
        return functional.linear(x, weight, bias)
    from hermes.engine.kernels import invariant as kernel

    return kernel.linear(x, weight, bias)


def head_logits(states: Tensor, weight: Tensor, *, invariant: bool = False) -> Tensor:
    """Logits [T, vocab] of final hidden states, in fp32 on a GPU, else in the dtype of the states.

    Near 27 two bf16 numbers are 0.125 apart: rounded logits would move a logprob by more than everything
    before them.
    """
    if invariant:
        from hermes.engine.kernels import invariant as kernel

        return kernel.linear(states, weight, dtype=torch.float32)
    if states.is_cuda and states.dtype != torch.float32:
        return torch.mm(states, weight.t(), out_dtype=torch.float32)
    return functional.linear(states, weight)
