"""Confidence intervals of 95 % for measured means. The same values always give the same interval."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

Z_95 = 1.959963984540054
"""Standard deviations within which 95 % of a normal distribution lie."""
_RESAMPLES = 2000


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and where it lies with 95 % confidence."""

    mean: float
    low: float
    high: float
    n: int
    method: str
    """`wilson` for passes and failures, `bootstrap` for other values."""


def interval(values: Sequence[float]) -> Interval:
    """The interval of the mean: Wilson's where all values are 0 or 1, otherwise the bootstrap's."""
    if not values:
        raise ValueError("an interval needs at least one value")
    if all(value in (0, 1) for value in values):
        return wilson(round(sum(values)), len(values))
    return bootstrap(values)


def wilson(successes: int, n: int) -> Interval:
    """The Wilson score interval of a rate: within 0 to 1, and wider than zero if all or none succeeded."""
    rate, spread = successes / n, Z_95**2 / n
    centre = (rate + spread / 2) / (1 + spread)
    half = Z_95 * math.sqrt(rate * (1 - rate) / n + spread / (4 * n)) / (1 + spread)
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return Interval(rate, low, high, n, "wilson")


def bootstrap(values: Sequence[float]) -> Interval:
    """Percentiles of the mean over resamples of the values, drawn with a fixed seed."""
    draw, n = random.Random(0), len(values)
    means = sorted(fmean(draw.choices(values, k=n)) for _ in range(_RESAMPLES))
    return Interval(fmean(values), quantile(means, 0.025), quantile(means, 0.975), n, "bootstrap")


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of `ordered`, which is not empty, lies; linear between neighbours."""
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)
