"""Curves for a browser: few points, no lost spike, and a smoothed line beside the raw one.

Downsampling keeps the smallest and the largest value of every stretch, in their order, so that a single bad
step of a million is still drawn. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

MAX_POINTS = 1200


class Curve(NamedTuple):
    steps: list[int]
    values: list[float]
    smooth: list[float]
    """Exponential moving average of all points, read at the points that are left."""


class Panel(NamedTuple):
    """One metric."""

    name: str
    title: str


PANELS: tuple[tuple[str, str], ...] = (
    ("reward/mean", "Reward"),
    ("eval/reward", "Held-out reward"),
    ("train/loss", "Loss"),
    ("eval/loss", "Held-out loss"),
    ("eval/accuracy", "Held-out accuracy"),
    ("train/accuracy", "Accuracy"),
    ("reward/positive", "Share with positive reward"),
    ("health/group_signal", "Groups with signal"),
    ("health/entropy", "Entropy"),
    ("kl/reference", "KL to the reference"),
    ("health/clip_fraction", "Clip fraction"),
    ("health/logprob_gap", "Sampler–trainer gap"),
    ("health/staleness", "Staleness"),
    ("health/truncated", "Truncated"),
    ("health/tool_errors", "Tool errors"),
    ("optim/grad_norm", "Gradient norm"),
    ("data/sequence_tokens", "Tokens a sequence"),
    ("time/step_s", "Seconds a step"),
    ("train/learning_rate", "Learning rate"),
)
"""What is shown first, in this order; every other metric follows by name."""
_TITLES = dict(PANELS)
_HIDDEN = frozenset({"step", "time_s", "data/lease_id"})


def panels(rows: Sequence[Mapping[str, Any]]) -> list[Panel]:
    """The metrics that the rows have."""
    names = {name for row in rows for name, value in row.items() if _is_number(value)} - _HIDDEN
    first = [name for name, _ in PANELS if name in names]
    return [Panel(name, _TITLES.get(name, name)) for name in [*first, *sorted(names - set(first))]]


def curve(rows: Sequence[Mapping[str, Any]], name: str, smoothing: float = 0.9) -> Curve:
    """The values of one metric; rows without it, and values that are not finite, are left out."""
    points = [
        (int(row["step"]), float(row[name]))
        for row in rows
        if _is_number(row.get(name)) and math.isfinite(row[name])
    ]
    steps = [step for step, _ in points]
    values = [value for _, value in points]
    smooth = moving_average(values, smoothing)
    positions = downsample(values, MAX_POINTS)
    return Curve(
        [steps[at] for at in positions],
        [_short(values[at]) for at in positions],
        [_short(smooth[at]) for at in positions],
    )


def moving_average(values: Sequence[float], smoothing: float) -> list[float]:
    """Exponential, corrected for its start, so that the first value is the first value."""
    total, weight, averages = 0.0, 0.0, []
    for value in values:
        total = smoothing * total + (1 - smoothing) * value
        weight = smoothing * weight + (1 - smoothing)
        averages.append(total / weight)
    return averages


def downsample(values: Sequence[float], max_points: int) -> list[int]:
    """Positions to keep: the smallest and the largest value of each stretch, the first and the last point."""
    count = len(values)
    if count <= max_points:
        return list(range(count))
    stretches = max(1, max_points // 2 - 1)
    kept_positions = {0, count - 1}
    for number in range(stretches):
        begin, end = number * count // stretches, (number + 1) * count // stretches
        kept_positions.add(min(range(begin, end), key=values.__getitem__))
        kept_positions.add(max(range(begin, end), key=values.__getitem__))
    return sorted(kept_positions)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(value: float) -> float:
    return float(f"{value:.6g}")
