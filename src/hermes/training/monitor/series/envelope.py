"""A curve of any length in bounded memory, made as its points come: no spike is lost, no point is read twice.

Up to MAX_POINTS all points are kept. From then on the curve is stretches of equal numbers of points, and of
each stretch the smallest and the largest value are kept, in their order. When there are too many stretches,
neighbours are joined. How the points are cut into calls of `extend` changes nothing. Pure.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any, NamedTuple, Self

from hermes.core import JSONObject

MAX_POINTS = 1200
SMOOTHING = 0.9
"""Of the moving average that is curve with the points."""
_NUMBERS = 6
"""Of a stretch: step, value and average of its smallest point, then of its largest."""


class CurvePoint(NamedTuple):
    step: int
    value: float
    smooth: float
    """Exponential moving average of all points up to this one, corrected for its start."""


class Curve(NamedTuple):
    steps: list[int]
    values: list[float]
    smooth: list[float]


class CurveEnvelope:
    """Takes the points of one metric in the order of their steps. Values are finite."""

    def __init__(self, max_points: int = MAX_POINTS) -> None:
        self._max_points = max(4, max_points)
        self._numbers = array("d")
        """The stretches, _NUMBERS each."""
        self._length = 1
        """Points a stretch."""
        self._filled = 0
        """Points in the last stretch."""
        self._count = 0
        self._total = 0.0
        """Of the moving average, before it is corrected."""
        self._first: CurvePoint | None = None
        self._last: CurvePoint | None = None
        self._curve: Curve | None = None

    @property
    def last(self) -> CurvePoint | None:
        return self._last

    def add(self, step: int, value: float) -> None:
        self.extend((step,), (value,))

    def extend(self, steps: Sequence[int], values: Sequence[float]) -> None:
        """Adds points with later steps than all before."""
        if not steps:
            return
        self._curve = None
        if self._first is None:
            self._first = CurvePoint(steps[0], values[0], values[0])
        at = 0
        while at < len(steps):
            while self._filled == self._length and self._is_full():
                self._join()
            if self._filled == self._length or not self._numbers:
                self._numbers.extend([0.0, float("inf"), 0.0, 0.0, float("-inf"), 0.0])
                self._filled = 0
            end = min(len(steps), at + self._length - self._filled)
            self._fill(steps[at:end], values[at:end])
            at = end
        self._last = CurvePoint(steps[-1], values[-1], self._total / (1 - SMOOTHING**self._count))

    def curve(self) -> Curve:
        """At most `max_points`, in the order of their steps, with the first and the last one."""
        if self._curve is None:
            self._curve = self._make_curve()
        return self._curve

    def state(self) -> tuple[JSONObject, bytes]:
        """All of it, for `restored`."""
        values = {
            "max_points": self._max_points,
            "length": self._length,
            "filled": self._filled,
            "count": self._count,
            "total": self._total,
            "first": self._first,
            "last": self._last,
        }
        return values, self._numbers.tobytes()

    @classmethod
    def restored(cls, values: Any, numbers: bytes) -> Self:
        """ValueError, KeyError or TypeError: this is no state of an envelope."""
        envelope = cls(values["max_points"])
        envelope._numbers.frombytes(numbers)
        if len(envelope._numbers) % _NUMBERS:
            raise ValueError("a stretch is incomplete")
        envelope._length, envelope._filled = int(values["length"]), int(values["filled"])
        envelope._count, envelope._total = int(values["count"]), float(values["total"])
        envelope._first, envelope._last = CurvePoint(*values["first"]), CurvePoint(*values["last"])
        return envelope

    def _fill(self, steps: Sequence[int], values: Sequence[float]) -> None:
        """Adds points that all belong to the last stretch. The loop runs for every value of a file."""
        low_step, low, low_smooth, high_step, high, high_smooth = self._numbers[-_NUMBERS:]
        total, count, rest = self._total, self._count, 1 - SMOOTHING
        for step, value in zip(steps, values, strict=True):
            total = SMOOTHING * total + rest * value
            count += 1
            if value < low:
                low_step, low, low_smooth = step, value, total / (1 - SMOOTHING**count)
            if value > high:
                high_step, high, high_smooth = step, value, total / (1 - SMOOTHING**count)
        self._numbers[-_NUMBERS:] = array("d", (low_step, low, low_smooth, high_step, high, high_smooth))
        self._total, self._count = total, count
        self._filled += len(steps)

    def _make_curve(self) -> Curve:
        curve = Curve([], [], [])
        newest_step = None
        for point in self._points():
            if newest_step is None or point[0] > newest_step:
                newest_step = point[0]
                curve.steps.append(int(newest_step))
                curve.values.append(point[1])
                curve.smooth.append(point[2])
        return curve

    def _points(self) -> list[tuple[float, ...]]:
        """In the order of their steps; a point may be there more than once."""
        if self._first is None or self._last is None:
            return []
        numbers = self._numbers.tolist()
        points: list[tuple[float, ...]] = [self._first]
        for at in range(0, len(numbers), _NUMBERS):
            low, high = tuple(numbers[at : at + 3]), tuple(numbers[at + 3 : at + _NUMBERS])
            points += (low, high) if low[0] <= high[0] else (high, low)
        return [*points, self._last]

    def _is_full(self) -> bool:
        """Whether another stretch would be too many, with the first and the last point beside them."""
        stretches = len(self._numbers) // _NUMBERS + 1
        return (stretches if self._length == 1 else 2 * stretches + 2) > self._max_points

    def _join(self) -> None:
        numbers = self._numbers
        joined = array("d")
        for at in range(0, len(numbers), 2 * _NUMBERS):
            left, right = numbers[at : at + _NUMBERS], numbers[at + _NUMBERS : at + 2 * _NUMBERS]
            if not right:
                joined += left
                break
            joined += left[:3] if left[1] <= right[1] else right[:3]
            joined += left[3:] if left[4] >= right[4] else right[3:]
        else:
            self._filled += self._length
        self._numbers = joined
        self._length *= 2
