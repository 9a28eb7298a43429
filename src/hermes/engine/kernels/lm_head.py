"""Triton kernel of the LM head's training pass: softmax statistics of a row of logits, in two passes over it.

The second pass reads the row from the GPU's cache, and can store the exponentials of the logits. Imported
only where there is a CUDA device.
"""

# mypy: ignore-errors
# Kernel bodies are Triton's language, not Python's: names are values on the device.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 4096


@triton.jit
def _softmax_stats(logits, exponentials, tops, totals, vocabulary, BLOCK: tl.constexpr, WRITE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * vocabulary
    cols = tl.arange(0, BLOCK)
    highest = tl.full([BLOCK], -float("inf"), tl.float32)
    for first in range(0, vocabulary, BLOCK):
        values = tl.load(start + first + cols, mask=first + cols < vocabulary, other=-float("inf"))
        highest = tl.maximum(highest, values.to(tl.float32))
    top = tl.max(highest, 0)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocabulary, BLOCK):
        inside = first + cols < vocabulary
        values = tl.load(start + first + cols, mask=inside, other=-float("inf"))
        weight = tl.exp(values.to(tl.float32) - top)
        total += weight
        if WRITE:
            target = exponentials + row * vocabulary + first + cols
            tl.store(target, weight.to(exponentials.dtype.element_ty), mask=inside)
    tl.store(tops + row, top)
    tl.store(totals + row, tl.sum(total, 0))


def softmax_stats(logits: Tensor, exponentials: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The highest logit and the sum of exp(logit - highest) of each row, [T, 1] in fp32.

    These exponentials are stored in `exponentials` [T, vocab], if given.
    """
    rows, vocabulary = logits.shape
    tops, totals = torch.empty(2, rows, 1, device=logits.device, dtype=torch.float32)
    _softmax_stats[(rows,)](
        logits, logits if exponentials is None else exponentials, tops, totals, vocabulary, _BLOCK,
        exponentials is not None, num_warps=8,
    )  # fmt: skip
    return tops, totals
