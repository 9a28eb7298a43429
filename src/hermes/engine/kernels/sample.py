"""Triton kernels that end a decode step: a token for every row, drawn from its logits in two passes.

The logits are read once by many programs, which note each block's largest value and the sum of its
exponentials; then one program a row finds the block and in it the token. Imported only where there is a CUDA
device.
"""

# mypy: ignore-errors
# Kernel bodies are Triton's language, not Python's: names are values on the device.

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _survey(
    logits, temperature, peaks, sums, bests, vocab, blocks,
    BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    block = tl.program_id(1)
    at = block * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + row * vocab + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
    heat = tl.load(temperature + row)
    heat = tl.where(heat <= 0, 1.0, heat)
    peak = tl.max(value, 0)
    spot = row * blocks + block
    tl.store(peaks + spot, peak)
    tl.store(sums + spot, tl.sum(tl.exp((value - peak) / heat), 0))
    tl.store(bests + spot, tl.min(tl.where(value == peak, at, vocab), 0))


@triton.jit
def _mixed(value):
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9
    value = (value ^ (value >> 27)) * 0x94D049BB133111EB
    return value ^ (value >> 31)


@triton.jit
def _pick(
    logits, temperature, seeds, counts, lengths, real, tokens, out_tokens, out_logprobs,
    peaks, sums, bests, vocab, blocks,
    BLOCK: tl.constexpr, BLOCKS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    part = tl.arange(0, BLOCKS)
    inside = part < blocks
    heat = tl.load(temperature + row)
    greedy = heat <= 0
    heat = tl.where(greedy, 1.0, heat)
    peak = tl.load(peaks + row * blocks + part, mask=inside, other=-float("inf"))
    top = tl.max(peak, 0)
    mass = tl.load(sums + row * blocks + part, mask=inside, other=0.0) * tl.exp((peak - top) / heat)
    ends = tl.cumsum(mass, 0)
    total = tl.sum(mass, 0)
    count = tl.load(counts + row)
    bits = _mixed(tl.load(seeds + row).to(tl.uint64) + (count + 1).to(tl.uint64) * 0x9E3779B97F4A7C15)
    goal = (bits >> 40).to(tl.float32) * (1.0 / 16777216.0) * total
    chosen = tl.min(tl.where((ends > goal) & inside, part, blocks - 1), 0)
    before = tl.sum(tl.where(part < chosen, mass, 0.0), 0)
    at = chosen * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(logits + row * vocab + at, mask=at < vocab, other=-float("inf")).to(tl.float32)
    weight = tl.exp((value - top) / heat)
    passed = (tl.cumsum(weight, 0) > goal - before) & (weight > 0)
    drawn = tl.min(tl.where(passed, at, vocab), 0)
    last = tl.max(tl.where(weight > 0, at, 0), 0)
    best = tl.load(bests + row * blocks + part, mask=inside, other=0)
    first_best = tl.min(tl.where((peak == top) & inside, best, vocab), 0)
    token = tl.where(greedy, first_best, tl.where(drawn < vocab, drawn, last))
    token = tl.minimum(token, vocab - 1)  # where logits are NaN nothing was found
    logit = tl.load(logits + row * vocab + token).to(tl.float32)
    tl.store(out_tokens + row, token.to(tl.int64))
    tl.store(out_logprobs + row, (logit - top) / heat - tl.log(total))
    tl.store(tokens + row, token.to(tl.int64))
    tl.store(counts + row, count + 1)
    tl.store(lengths + row, tl.load(lengths + row) + tl.load(real + row))


def draw_rows(logits: Tensor, temperature: Tensor, state: Tensor, tokens: Tensor, logprobs: Tensor) -> None:
    """Draws a token for every row of logits [rows, vocab] and moves the rows on, in two passes.

    By inverse distribution at one number a row, as `sampling.choose` does it, without top-k and top-p.
    `state` [6, rows]: tokens, cells, lengths, seeds, counts, and how far a length moves on.
    """
    rows, vocab = logits.shape
    block = 2048
    blocks = triton.cdiv(vocab, block)
    peaks, sums = torch.empty(2, rows, blocks, device=logits.device)
    bests = torch.empty(rows, blocks, device=logits.device, dtype=torch.int32)
    _survey[(rows, blocks)](
        logits, temperature, peaks, sums, bests, vocab, blocks, block, num_warps=4
    )  # fmt: skip
    current, _, lengths, seeds, counts, real = state
    _pick[(rows,)](
        logits, temperature, seeds, counts, lengths, real, current, tokens, logprobs,
        peaks, sums, bests, vocab, blocks, block, triton.next_power_of_2(blocks), num_warps=8,
    )  # fmt: skip
