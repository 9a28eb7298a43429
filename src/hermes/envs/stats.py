"""Confidence intervals of 95 % for measured means: rates and scores."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

_Z = 1.959963984540054
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    mean: float
    low: float
    high: float
    n: int
    method: str
    """`wilson` for values that are all 0 or 1, `bootstrap` for others."""


def interval(values: Sequence[float]) -> Interval:
    """The 95 % confidence interval of the mean. Deterministic: the resampling has a fixed seed."""
    if not values:
        raise ValueError("an interval needs at least one value")
    mean, n = fmean(values), len(values)
    if all(value in (0, 1) for value in values):
        low, high = wilson(round(sum(values)), n)
        return Interval(mean, low, high, n, "wilson")
    draw = random.Random(0)
    means = sorted(fmean(draw.choices(values, k=n)) for _ in range(_RESAMPLES))
    edge = int(0.025 * _RESAMPLES)
    return Interval(mean, means[edge], means[-edge - 1], n, "bootstrap")


def wilson(successes: int, n: int) -> tuple[float, float]:
    """The Wilson score interval: within 0 to 1, and wider than zero if all or none succeeded."""
    rate, spread = successes / n, _Z * _Z / n
    centre = (rate + spread / 2) / (1 + spread)
    half = _Z * math.sqrt(rate * (1 - rate) / n + spread / (4 * n)) / (1 + spread)
    return max(0.0, centre - half), min(1.0, centre + half)
