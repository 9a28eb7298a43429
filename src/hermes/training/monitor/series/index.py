"""Where the rows of a file are: a note of every n-th row, so that few rows have to be read to find one.

`n` doubles when there are too many notes: memory does not grow with the file.
"""

from __future__ import annotations

import bisect
from array import array
from typing import NamedTuple

from hermes.training.monitor.series.rows import Row

MAX_NOTES = 4096


class RowNote(NamedTuple):
    """A place from which the rows can be read on."""

    offset: int
    """In the file."""
    after_step: int
    """The rows of this step and earlier ones come before it."""


BEGINNING = RowNote(0, -(1 << 60))


class RowIndex:
    def __init__(self) -> None:
        self.stride = 1
        self.steps = array("q")
        self.times_s = array("d")
        self.offsets = array("q")

    def extend(self, count: int, rows: list[Row], offsets: list[int]) -> None:
        """`count`: of the rows before these."""
        for at in range(-count % self.stride, len(rows), self.stride):
            self.steps.append(rows[at]["step"])
            self.times_s.append(time_s(rows[at]))
            self.offsets.append(offsets[at])
        while len(self.steps) > MAX_NOTES:
            self.stride *= 2
            self.steps, self.times_s, self.offsets = self.steps[::2], self.times_s[::2], self.offsets[::2]

    def before(self, step: int) -> RowNote:
        """From here the rows of that step and of the one before it can be read."""
        return self._note(bisect.bisect_left(self.steps, step) - 1)

    def before_time(self, at_s: float) -> RowNote:
        return self._note(bisect.bisect_right(self.times_s, at_s) - 1)

    def before_row(self, number: int) -> RowNote:
        return self._note(number // self.stride)

    def _note(self, at: int) -> RowNote:
        if at < 0 or not self.steps:
            return BEGINNING
        return RowNote(self.offsets[at], self.steps[at] - 1)


def time_s(row: Row) -> float:
    """When the row was written; 0: it does not say."""
    value = row.get("time_s")
    return float(value) if isinstance(value, int | float) else 0.0
