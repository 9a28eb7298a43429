"""The logprob of a token under the distribution that it was sampled from: temperature, top-k and top-p. Pure.

A service scores prompts at temperature 1 and returns the likeliest tokens of each position. From these the
normaliser at another temperature follows up to the tokens that are not among them, so the result is an
interval. With enough tokens it is narrow: at a temperature below 1 the rest has next to no weight.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from hermes.core.sequence import TrainSequence

_LARGEST_VOCABULARY = 300_000
_NO_MASS = 1e-9


class LogprobBounds(NamedTuple):
    """Between these is the logprob of a token."""

    low: float
    high: float

    @property
    def middle(self) -> float:
        return (self.low + self.high) / 2


def needs_top_tokens(sequence: TrainSequence) -> bool:
    """Whether the sampling distribution of a sequence differs from the one at temperature 1."""
    return sequence.temperature not in (0.0, 1.0) or sequence.top_p < 1.0 or sequence.top_k > 0


def sampling_bounds(logprob: float, top: Sequence[float], sequence: TrainSequence) -> LogprobBounds | None:
    """The logprob of a token of the sequence as its sampler states it; None: `top` is too short to tell.

    `logprob` and `top`, which is in falling order: at temperature 1. A greedy sampler (temperature 0) states
    the logprob at temperature 1.
    """
    if not needs_top_tokens(sequence) or not sequence.temperature:
        return LogprobBounds(logprob, logprob)
    if not top:
        return None
    temperature = sequence.temperature
    weights = [math.exp(value / temperature) for value in top]
    rest_low, rest_high = _rest(top, temperature)
    if 0 < sequence.top_k <= len(weights):
        weights, rest_low, rest_high = weights[: sequence.top_k], 0.0, 0.0
    if sequence.top_p < 1.0:
        nucleus = _nucleus(weights, sequence.top_p * (sum(weights) + rest_high))
        if nucleus is None:
            return None
        weights, rest_low, rest_high = nucleus, 0.0, 0.0
    scaled, total = logprob / temperature, sum(weights)
    return LogprobBounds(scaled - math.log(total + rest_high), min(0.0, scaled - math.log(total + rest_low)))


def _rest(top: Sequence[float], temperature: float) -> tuple[float, float]:
    """The least and the most weight that the tokens outside of `top` can have at the temperature."""
    mass = max(0.0, 1.0 - sum(math.exp(value) for value in top))
    if mass < _NO_MASS:
        return 0.0, 0.0
    # No other token is likelier than the last of `top`: at most so many tokens of that size, or very many.
    equal = mass * math.exp(top[-1] * (1 / temperature - 1))
    if temperature < 1:
        return 0.0, equal
    return equal, _LARGEST_VOCABULARY ** (1 - 1 / temperature) * mass ** (1 / temperature)


def _nucleus(weights: Sequence[float], enough: float) -> list[float] | None:
    """The first weights whose sum reaches `enough`; None: all of them do not."""
    total, nucleus = 0.0, []
    for weight in weights:
        nucleus.append(weight)
        total += weight
        if total >= enough:
            return nucleus
    return None
