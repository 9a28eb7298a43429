"""Triton kernel of the output projection's training pass: a row of logits, normalised in two readings.

The second reading of a row comes from the cache, and may replace the logits by their exponentials.
Imported only where there is a CUDA device.
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
def _normalise(logits, tops, totals, vocabulary, BLOCK: tl.constexpr, WRITE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    start = logits + row * vocabulary
    at = tl.arange(0, BLOCK)
    highest = tl.full([BLOCK], -float("inf"), tl.float32)
    for first in range(0, vocabulary, BLOCK):
        some = tl.load(start + first + at, mask=first + at < vocabulary, other=-float("inf"))
        highest = tl.maximum(highest, some.to(tl.float32))
    top = tl.max(highest, 0)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, vocabulary, BLOCK):
        inside = first + at < vocabulary
        some = tl.load(start + first + at, mask=inside, other=-float("inf"))
        weight = tl.exp(some.to(tl.float32) - top)
        total += weight
        if WRITE:
            tl.store(start + first + at, weight.to(some.dtype), mask=inside)
    tl.store(tops + row, top)
    tl.store(totals + row, tl.sum(total, 0))


def normalise(logits: Tensor, *, write: bool) -> tuple[Tensor, Tensor]:
    """The highest logit and the sum of exp(logit - highest) of each row, [T, 1] in fp32.

    With `write`, these exponentials take the place of the logits.
    """
    rows, vocabulary = logits.shape
    tops, totals = torch.empty(2, rows, 1, device=logits.device, dtype=torch.float32)
    _normalise[(rows,)](logits, tops, totals, vocabulary, _BLOCK, write, num_warps=8)
    return tops, totals
