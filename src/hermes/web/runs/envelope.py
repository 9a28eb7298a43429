"""A curve of any length in bounded memory, made as its points come: no spike is lost, no point is read twice.

Up to MAX_POINTS all points are kept. From then on the curve is stretches of equal numbers of points, and of
each stretch the smallest and the largest value are kept, in their order. When there are too many stretches,
neighbours are joined. Pure.
"""

from __future__ import annotations

from typing import NamedTuple

MAX_POINTS = 1200
SMOOTHING = 0.9
"""Of the moving average that is made with the points."""


class CurvePoint(NamedTuple):
    step: int
    value: float
    smooth: float
    """Exponential moving average of all points up to this one, corrected for its start."""


class Curve(NamedTuple):
    steps: list[int]
    values: list[float]
    smooth: list[float]


Stretch = tuple[CurvePoint, CurvePoint]
"""The smallest and the largest."""


class CurveEnvelope:
    """Takes the points of one metric in the order of their steps."""

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._max_points = max(4, max_points)
        self._stretches: list[Stretch] = []
        self._length = 1
        """Points a stretch."""
        self._filled = 0
        """Points in the last stretch."""
        self._first: CurvePoint | None = None
        self._last: CurvePoint | None = None
        self._total = 0.0
        self._weight = 0.0

    @property
    def last(self) -> CurvePoint | None:
        return self._last

    def add(self, step: int, value: float) -> None:
        self._total = SMOOTHING * self._total + (1 - SMOOTHING) * value
        self._weight = SMOOTHING * self._weight + (1 - SMOOTHING)
        point = CurvePoint(step, value, self._total / self._weight)
        self._last = point
        if self._first is None:
            self._first = point
        while self._filled == self._length and self._is_full():
            self._join()
        if self._stretches and self._filled < self._length:
            low, high = self._stretches[-1]
            self._stretches[-1] = (point if value < low.value else low, point if value > high.value else high)
            self._filled += 1
        else:
            self._stretches.append((point, point))
            self._filled = 1

    def points(self) -> list[CurvePoint]:
        """At most `max_points`, in the order of their steps, with the first and the last one."""
        by_step = {point.step: point for stretch in self._stretches for point in stretch}
        for end in (self._first, self._last):
            if end is not None:
                by_step[end.step] = end
        return [by_step[step] for step in sorted(by_step)]

    def _is_full(self) -> bool:
        """Whether another stretch would be too many, with the first and the last point beside them."""
        stretches = len(self._stretches) + 1
        return (stretches if self._length == 1 else 2 * stretches + 2) > self._max_points

    def _join(self) -> None:
        pairs = [self._stretches[at : at + 2] for at in range(0, len(self._stretches), 2)]
        self._filled += self._length * (len(pairs[-1]) - 1)
        self._stretches = [
            (
                min((stretch[0] for stretch in pair), key=_value),
                max((stretch[1] for stretch in pair), key=_value),
            )
            for pair in pairs
        ]
        self._length *= 2


def _value(point: CurvePoint) -> float:
    return point.value
