"""Choosing tokens from logits, as tensors: temperature, top-k, top-p, seeds.

One uniform number per row, a pure function of the row's seed and of how many tokens it has drawn, picks the
token by inverse distribution. So a row's choice depends on its own logits alone, never on its neighbours, and
a seeded request repeats. Nothing here waits for the device unless `width` is left open for top-p.

The reported logprob is that of the distribution the token was really drawn from: temperature applied, and
with top-k or top-p cut off and renormalised, because an importance ratio needs the true probability of the
draw. A greedy row (temperature 0) draws nothing; it reports the logprob at temperature 1. Where logits are
not finite the logprob is NaN and the token means nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_BLOCK = 256
_FIRST_WIDTH = 256
"""Top-p looks at this many of the likeliest tokens first, and at more only where they hold too little."""

_GOLDEN = 0x9E3779B97F4A7C15
_MULTIPLY = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Draws:
    """How each row's token is chosen; [rows] on the device, but for the flags, which the host knows."""

    seeds: Tensor
    counts: Tensor
    """How many tokens the row has drawn before."""
    temperature: Tensor
    top_k: Tensor
    """0 or less: all."""
    top_p: Tensor
    greedy: bool
    """Some row has temperature 0."""
    filtered: bool
    """Some row has a top-k or a top-p."""
    width: int | None = None
    """How many of the likeliest tokens top-p may keep; None: as many as it takes, which asks the device."""


def derive_seed(seed: int, index: int) -> int:
    """The seed of one sample of a request, as a signed 64-bit number."""
    value = _mix(_mix(seed & _MASK) + index * _GOLDEN & _MASK)
    return value - (1 << 64) if value >> 63 else value


def uniform(seeds: Tensor, counts: Tensor) -> Tensor:
    """[rows] fp64 in [0, 1), from the seeds and counts alone."""
    bits = _mix_tensor(seeds + (counts + 1) * _signed(_GOLDEN))
    return _shift(bits, 11).double() * 2.0**-53


def choose(logits: Tensor, draws: Draws) -> tuple[Tensor, Tensor]:
    """Token ids and their logprobs [rows] for fp32 logits [rows, vocab], which are overwritten."""
    greedy = draws.temperature <= 0
    best = logits.argmax(-1) if draws.greedy else None
    scaled = logits.div_(torch.where(greedy, 1.0, draws.temperature)[:, None])
    if draws.filtered:
        scaled.masked_fill_(scaled < _threshold(scaled, draws)[:, None], float("-inf"))
    top = scaled.amax(-1, keepdim=True)
    weights = scaled.sub(top).exp_()
    drawn, total = _draw(weights, uniform(draws.seeds, draws.counts))
    tokens = drawn if best is None else torch.where(greedy, best, drawn)
    chosen = scaled.gather(1, tokens[:, None]) - top
    return tokens, chosen[:, 0] - total.log().float()


def _draw(weights: Tensor, at: Tensor) -> tuple[Tensor, Tensor]:
    """Per row the index where the running sum of `weights` passes `at` of the total; and the total, fp64.

    In two stages, whole blocks first, so that the exact running sum is only ever taken over a few hundred.
    A row of NaN gives some index, and NaN for its total.
    """
    rows, vocab = weights.shape
    if vocab % _BLOCK:
        weights = torch.nn.functional.pad(weights, (0, _BLOCK - vocab % _BLOCK))
    blocks = weights.view(rows, -1, _BLOCK)
    ends = blocks.sum(-1).double().cumsum(-1)
    total = ends[:, -1:]
    goal = _below(at[:, None] * total, total)
    block = torch.searchsorted(ends, goal, right=True).clamp_max(blocks.shape[1] - 1)
    before = torch.where(block > 0, ends.gather(1, (block - 1).clamp_min(0)), 0.0)
    inside = blocks.gather(1, block[:, :, None].expand(-1, -1, _BLOCK))[:, 0].double().cumsum(-1)
    rest = _below(goal - before, inside[:, -1:])
    index = torch.searchsorted(inside, rest, right=True)
    return (block * _BLOCK + index)[:, 0].clamp_max(vocab - 1), total[:, 0]


def _below(value: Tensor, limit: Tensor) -> Tensor:
    """`value`, but always under `limit`, so that some index has passed it: rounding may have lifted it."""
    return torch.minimum(value, torch.nextafter(limit, torch.zeros_like(limit)))


def _threshold(scaled: Tensor, draws: Draws) -> Tensor:
    """[rows] the smallest logit that top-k and then top-p keep. Equals of it are kept too."""
    vocab = scaled.shape[1]
    limit = torch.where(draws.top_k > 0, draws.top_k, vocab).clamp_max(vocab)
    width = min(draws.width or _FIRST_WIDTH, vocab)
    while True:
        values = torch.topk(scaled, width, dim=-1).values
        index = torch.arange(width, device=scaled.device)
        inside = values.masked_fill(index >= limit[:, None], float("-inf"))
        whole = torch.where(limit > width, scaled.logsumexp(-1), inside.logsumexp(-1))
        mass = (inside - whole[:, None]).exp().cumsum(-1)
        wanted = ((mass < draws.top_p[:, None]).sum(-1) + 1).minimum(limit)
        if draws.width is not None or width == vocab:
            break
        enough = torch.where(
            limit == vocab, (mass[:, -1] >= draws.top_p) | (draws.top_p >= 1), limit <= width
        )
        if bool(enough.all()):
            break
        width = min(width * 8, vocab)
    found = values.gather(1, (wanted.clamp_max(width) - 1)[:, None])[:, 0]
    return torch.where((draws.top_p >= 1) & (limit == vocab), float("-inf"), found)


def _shift(value: Tensor, by: int) -> Tensor:
    """Logical shift to the right; torch's own carries the sign along."""
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
