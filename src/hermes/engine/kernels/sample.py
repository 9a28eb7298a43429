"""Triton kernels that end a decode step: they sample a token for every row from its logits, in two passes.

The logits are read once by many programs, which store each block's maximum and the sum of its exponentials;
then one program per row finds the block, and the token in it. `column_logprobs` gives the logprobs of chosen
tokens with the same sums. Imported only where there is a CUDA device.
"""

# mypy: ignore-errors
# Kernel bodies are Triton's language, not Python's: names are values on the device.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

_BLOCK = 2048
"""Logits of one program."""


@triton.jit
def _reduce_blocks(
    logits, temperature, peaks, sums, bests, vocab, blocks,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    tokens = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + row * vocab + tokens, mask=tokens < vocab, other=-float("inf")).to(tl.float32)
    scale = tl.load(temperature + row)
    scale = tl.where(scale <= 0, 1.0, scale)
    peak = tl.max(value, 0)
    block_offset = row * blocks + block
    tl.store(peaks + block_offset, peak)
    tl.store(sums + block_offset, tl.sum(tl.exp((value - peak) / scale), 0))
    tl.store(bests + block_offset, tl.min(tl.where(value == peak, tokens, vocab), 0))


@triton.jit
def _block_mass(sums, peak, top, scale, part, inside):
    """The sum of exp((logit - top) / scale) of each block."""
    return tl.load(sums + part, mask=inside, other=0.0) * tl.exp((peak - top) / scale)


@triton.jit
def _logprob(logit, top, scale, total):
    return (logit - top) / scale - tl.log(total)


@triton.jit
def _mix(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def _sample(
    logits, temperature, seeds, counts, lengths, length_steps, tokens, sampled_tokens, sampled_logprobs,
    peaks, sums, bests, vocab, blocks,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCKS)
    inside = part < blocks
    scale = tl.load(temperature + row)
    greedy = scale <= 0
    scale = tl.where(greedy, 1.0, scale)
    peak = tl.load(peaks + row * blocks + part, mask=inside, other=-float("inf"))
    top = tl.max(peak, 0)
    mass = _block_mass(sums + row * blocks, peak, top, scale, part, inside)
    ends = tl.cumsum(mass, 0)
    total = tl.sum(mass, 0)
    count = tl.load(counts + row)
    bits = _mix(tl.load(seeds + row).to(tl.uint64) + (count + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)
    threshold = (bits >> 40).to(tl.float32) * (1.0 / 16777216.0) * total
    chosen = tl.min(tl.where((ends > threshold) & inside, part, blocks - 1), 0)
    before = tl.sum(tl.where(part < chosen, mass, 0.0), 0)
    candidates = chosen * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + row * vocab + candidates, mask=candidates < vocab, other=-float("inf")).to(
        tl.float32
    )
    weight = tl.exp((value - top) / scale)
    passed = (tl.cumsum(weight, 0) > threshold - before) & (weight > 0)
    sampled = tl.min(tl.where(passed, candidates, vocab), 0)
    last = tl.max(tl.where(weight > 0, candidates, 0), 0)
    best = tl.load(bests + row * blocks + part, mask=inside, other=0)
    first_best = tl.min(tl.where((peak == top) & inside, best, vocab), 0)
    token = tl.where(greedy, first_best, tl.where(sampled < vocab, sampled, last))
    token = tl.minimum(token, vocab - 1)  # where logits are NaN no index passed
    logit = tl.load(logits + row * vocab + token).to(tl.float32)
    tl.store(sampled_tokens + row, token.to(tl.int64))
    tl.store(sampled_logprobs + row, _logprob(logit, top, scale, total))
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(counts + row, count + 1)
    tl.store(lengths + row, tl.load(lengths + row) + tl.load(length_steps + row))


def sample_rows(
    logits: Tensor,
    *,
    temperature: Tensor,
    seeds: Tensor,
    counts: Tensor,
    lengths: Tensor,
    length_steps: Tensor,
    tokens: Tensor,
    sampled_tokens: Tensor,
    sampled_logprobs: Tensor,
) -> None:
    """Samples a token for every row of logits [rows, vocab] and advances the rows' state, [rows] each.

    By inverse transform sampling with one uniform number per row, as `sampling.logits.sample_tokens` does it,
    without top-k and top-p. The token is stored in `tokens` and `sampled_tokens`; `counts` increase by 1,
    `lengths` by `length_steps`.
    """
    rows, vocab = logits.shape
    peaks, sums, bests = _block_statistics(logits, temperature)
    blocks = peaks.shape[1]
    _sample[(rows,)](
        logits, temperature, seeds, counts, lengths, length_steps, tokens, sampled_tokens, sampled_logprobs,
        peaks, sums, bests, vocab, blocks, _BLOCK, triton.next_power_of_2(blocks), num_warps=8,
    )  # fmt: skip


def _block_statistics(logits: Tensor, temperature: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The maximum, the sum of exponentials and the index of the maximum of each block of logits."""
    rows, vocab = logits.shape
    blocks = triton.cdiv(vocab, _BLOCK)
    peaks, sums = torch.empty(2, rows, blocks, device=logits.device)
    bests = torch.empty(rows, blocks, device=logits.device, dtype=torch.int32)
    _reduce_blocks[(rows, blocks)](
        logits, temperature, peaks, sums, bests, vocab, blocks, _BLOCK, num_warps=4
    )  # fmt: skip
    return peaks, sums, bests


@triton.jit
def _column_logprobs(
    logits, columns, out, peaks, sums, vocab, blocks, WIDTH: tl.constexpr, BLOCKS: tl.constexpr
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCKS)
    inside = part < blocks
    peak = tl.load(peaks + row * blocks + part, mask=inside, other=-float("inf"))
    top = tl.max(peak, 0)
    total = tl.sum(_block_mass(sums + row * blocks, peak, top, 1.0, part, inside), 0)
    for column in range(WIDTH):
        token = tl.load(columns + row * WIDTH + column)
        logit = tl.load(logits + row * vocab + token).to(tl.float32)
        tl.store(out + row * WIDTH + column, _logprob(logit, top, 1.0, total))


def column_logprobs(logits: Tensor, columns: Tensor) -> Tensor:
    """fp32 logprobs of the tokens `columns` [rows, K] at temperature 1, with the bits of `sample_rows`."""
    rows, width = columns.shape
    peaks, sums, _ = _block_statistics(logits, torch.ones(rows, device=logits.device))
    out = torch.empty(rows, width, device=logits.device)
    blocks = peaks.shape[1]
    _column_logprobs[(rows,)](
        logits, columns.contiguous(), out, peaks, sums, logits.shape[1], blocks, width,
        triton.next_power_of_2(blocks), num_warps=8,
    )  # fmt: skip
    return out
