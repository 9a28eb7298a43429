"""Sampling tokens from logits, as tensors: temperature, top-k, top-p, seeds.

One uniform number per row, a pure function of the row's seed and of how many tokens it has sampled, picks the
token by inverse transform sampling. So a row's token depends on its own logits alone, never on its
neighbours, and a seeded request is repeatable. Nothing here synchronises with the device, except top-p
without a `width`.

The reported logprob is that of the distribution the token was sampled from: temperature applied, and
truncated and renormalised by top-k and top-p, because an importance ratio needs the true sampling
probability. A greedy row (temperature 0) reports the logprob at temperature 1. Where logits are not finite
the logprob is NaN and the token is meaningless.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 256
_INITIAL_TOP_WIDTH = 256
"""Top-p sorts this many of the likeliest tokens first, and more only where their mass is too small."""

_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLY = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class SamplingTensors:
    """How each row's token is sampled: tensors [rows] on the device, and flags on the host."""

    seeds: Tensor
    counts: Tensor
    """How many tokens the row has sampled before."""
    temperature: Tensor
    top_k: Tensor
    """0 or less: all."""
    top_p: Tensor
    greedy: bool
    """Some row has temperature 0."""
    filtered: bool
    """Some row has a top-k or a top-p."""
    width: int | None = None
    """How many of the likeliest tokens top-p may keep; None: as many as needed, which synchronises."""


def derive_seed(seed: int, index: int) -> int:
    """The seed of one sample of a request, as a signed 64-bit number."""
    value = _mix(_mix(seed & _MASK) + index * _GOLDEN & _MASK)
    return value - (1 << 64) if value >> 63 else value


def uniform(seeds: Tensor, counts: Tensor) -> Tensor:
    """[rows] fp64 in [0, 1), from the seeds and counts alone."""
    bits = _mix_tensor(seeds + (counts + 1) * _signed(_GOLDEN))
    return _shift(bits, 11).double() * 2.0**-53


def sample_tokens(logits: Tensor, sampling: SamplingTensors) -> tuple[Tensor, Tensor]:
    """Token ids and their logprobs [rows] for fp32 logits [rows, vocab], which are overwritten."""
    greedy = sampling.temperature <= 0
    best = logits.argmax(-1) if sampling.greedy else None
    scaled = logits.div_(torch.where(greedy, 1.0, sampling.temperature)[:, None])
    if sampling.filtered:
        scaled.masked_fill_(scaled < _threshold(scaled, sampling)[:, None], float("-inf"))
    top = scaled.amax(-1, keepdim=True)
    weights = scaled.sub(top).exp_()
    sampled, total = _inverse_transform(weights, uniform(sampling.seeds, sampling.counts))
    tokens = sampled if best is None else torch.where(greedy, best, sampled)
    chosen = scaled.gather(1, tokens[:, None]) - top
    return tokens, chosen[:, 0] - total.log().float()


def _inverse_transform(weights: Tensor, quantile: Tensor) -> tuple[Tensor, Tensor]:
    """Per row, the index where the cumulative sum of `weights` passes `quantile` of the total; and the total.

    In two stages, whole blocks first, so that the exact cumulative sum is only taken over a few hundred
    values. The totals are fp64. A row of NaN gives an arbitrary index and a total of NaN.
    """
    rows, vocab = weights.shape
    if vocab % _BLOCK:
        weights = torch.nn.functional.pad(weights, (0, _BLOCK - vocab % _BLOCK))
    blocks = weights.view(rows, -1, _BLOCK)
    ends = blocks.sum(-1).double().cumsum(-1)
    total = ends[:, -1:]
    goal = _below(quantile[:, None] * total, total)
    block = torch.searchsorted(ends, goal, right=True).clamp_max(blocks.shape[1] - 1)
    before = torch.where(block > 0, ends.gather(1, (block - 1).clamp_min(0)), 0.0)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0].double().cumsum(-1)
    rest = _below(goal - before, inside[:, -1:])
    index = torch.searchsorted(inside, rest, right=True)
    return (block * _BLOCK + index)[:, 0].clamp_max(vocab - 1), total[:, 0]


def _below(value: Tensor, limit: Tensor) -> Tensor:
    """`value`, kept below `limit` where rounding lifted it, so that the cumulative sum always passes it."""
    return torch.minimum(value, torch.nextafter(limit, torch.zeros_like(limit)))


def _threshold(scaled: Tensor, sampling: SamplingTensors) -> Tensor:
    """[rows] the smallest logit that top-k and then top-p keep. Ties with it are kept too."""
    vocab = scaled.shape[1]
    limit = torch.where(sampling.top_k > 0, sampling.top_k, vocab).clamp_max(vocab)
    width = min(sampling.width or _INITIAL_TOP_WIDTH, vocab)
    while True:
        values = torch.topk(scaled, width, dim=-1).values
        index = torch.arange(width, device=scaled.device)
        inside = values.masked_fill(index >= limit[:, None], float("-inf"))
        total_lse = torch.where(limit > width, scaled.logsumexp(-1), inside.logsumexp(-1))
        mass = (inside - total_lse[:, None]).exp().cumsum(-1)
        nucleus_size = ((mass < sampling.top_p[:, None]).sum(-1) + 1).minimum(limit)
        if sampling.width is not None or width == vocab:
            break
        enough = torch.where(
            limit == vocab, (mass[:, -1] >= sampling.top_p) | (sampling.top_p >= 1), limit <= width
        )
        if bool(enough.all()):
            break
        width = min(width * 8, vocab)
    smallest = values.gather(1, (nucleus_size.clamp_max(width) - 1)[:, None])[:, 0]
    return torch.where((sampling.top_p >= 1) & (limit == vocab), float("-inf"), smallest)


def _shift(value: Tensor, by: int) -> Tensor:
    """Logical shift to the right; torch's `>>` is arithmetic."""
    return (value >> by) & ((1 << (64 - by)) - 1)


def _mix_tensor(value: Tensor) -> Tensor:
    value = (value ^ _shift(value, 30)) * _signed(_MULTIPLY[0])
    value = (value ^ _shift(value, 27)) * _signed(_MULTIPLY[1])
    return value ^ _shift(value, 31)


def _mix(value: int) -> int:
    """A 64-bit finaliser: every input bit moves every output bit."""
    value = (value ^ value >> 30) * _MULTIPLY[0] & _MASK
    value = (value ^ value >> 27) * _MULTIPLY[1] & _MASK
    return value ^ value >> 31


def _signed(value: int) -> int:
    return value - (1 << 64) if value >> 63 else value
