"""What is kept of the metrics of one run: curves, alerts, and where its rows are, all of bounded size.

Of a step that was written twice the later row counts. Only for such steps is there a note each.
"""

from __future__ import annotations

import bisect
import math
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import BinaryIO

from hermes.training.monitor.incidents.alerts import Alert, AlertRule, AlertWatch
from hermes.training.monitor.series.envelope import CurveEnvelope
from hermes.training.monitor.series.index import BEGINNING, RowIndex, RowNote, time_s
from hermes.training.monitor.series.rows import Row, complete_lines, parse_row, rows_from

HIDDEN = frozenset({"step", "time_s", "data/lease_id"})
"""Numbers of a row that are no curves."""
_BATCH_ROWS = 4096


class RunSeries:
    """Used by one thread at a time."""

    def __init__(self, path: Path, rules: Sequence[AlertRule] = ()) -> None:
        self.path = path
        self.end = 0
        """Bytes of the file that have been read: its complete lines."""
        self.count = 0
        """Steps."""
        self.last_step = 0
        """0: none."""
        self.envelopes: dict[str, CurveEnvelope] = {}
        self.index = RowIndex()
        self.watch = AlertWatch(rules)
        self._again_steps, self._again_offsets = array("q"), array("q")
        """Of the rows that count for a step that had been written before, by step."""

    @property
    def rules(self) -> tuple[AlertRule, ...]:
        return self.watch.rules

    @property
    def alerts(self) -> list[Alert]:
        return self.watch.alerts

    @property
    def has_repeats(self) -> bool:
        """Whether a step was written twice."""
        return bool(self._again_steps)

    def read_on(self, file: BinaryIO, end: int) -> None:
        """Reads the complete lines that were appended."""
        again: dict[int, int] = {}
        for begin, lines in complete_lines(file, self.end, end):
            rows: list[Row] = []
            offsets: list[int] = []
            newest, offset = self.last_step if self.count else BEGINNING.after_step, begin
            for line in lines:
                row = parse_row(line)
                if row is not None and row["step"] > newest:
                    newest = row["step"]
                    rows.append(row)
                    offsets.append(offset)
                elif row is not None:
                    again[row["step"]] = offset
                offset += len(line) + 1
            self._add(rows, offsets)
            self.end = offset
        if again:
            self._make_again(file, again)

    def rows_after(self, step: int, limit: int) -> list[Row] | None:
        """The rows of later steps; None: there are more than `limit`."""
        if step >= self.last_step:
            return []
        with self.path.open("rb") as file:
            later = (row for row, _ in self._rows(file, self.index.before(step + 1)) if row["step"] > step)
            rows = list(islice(later, limit + 1))
        return None if len(rows) > limit else rows

    def recent(self, count: int) -> list[Row]:
        """The newest rows, oldest first."""
        if not self.count:
            return []
        with self.path.open("rb") as file:
            note = self.index.before_row(max(0, self.count - count))
            return [row for row, _ in deque(self._rows(file, note), maxlen=count)]

    def find(self, step: int) -> tuple[Row, float] | None:
        """The row of a step, and when the step before it ended, in seconds; None: there is no such step."""
        if not self.count:
            return None
        before_s = 0.0
        with self.path.open("rb") as file:
            for row, _ in self._rows(file, self.index.before(step)):
                if row["step"] >= step:
                    return (row, before_s) if row["step"] == step else None
                before_s = time_s(row)
        return None

    def step_at(self, at_ms: float) -> int:
        """The step that had been made at that time; 0: none."""
        step = 0
        if self.count:
            with self.path.open("rb") as file:
                for row, _ in self._rows(file, self.index.before_time(at_ms / 1000)):
                    if time_s(row) > at_ms / 1000:
                        break
                    step = row["step"]
        return step

    def _add(self, rows: list[Row], offsets: list[int]) -> None:
        """Rows of later steps, and from where they can be read."""
        if not rows:
            return
        columns: dict[str, tuple[list[int], list[float]]] = {}
        for row in rows:
            step = row["step"]
            for name, value in row.items():
                if value.__class__ is not float and not _is_integer(value):
                    continue
                column = columns.get(name)
                if column is None:
                    column = columns[name] = ([], [])
                column[0].append(step)
                column[1].append(value)
        for name in columns.keys() - HIDDEN:
            envelope = self.envelopes.get(name)
            steps, values = _finite(*columns[name])
            if envelope is None and steps:
                envelope = self.envelopes[name] = CurveEnvelope()
            if envelope is not None:
                envelope.extend(steps, values)
        if self.watch.rules:
            for row in rows:
                self.watch.add(row["step"], row)
        self.index.extend(self.count, rows, offsets)
        self.count += len(rows)
        self.last_step = rows[-1]["step"]

    def _make_again(self, file: BinaryIO, again: dict[int, int]) -> None:
        """Steps were written twice: everything is made again with the later rows."""
        offsets = dict(zip(self._again_steps, self._again_offsets, strict=True)) | again
        self._again_steps = array("q", sorted(offsets))
        self._again_offsets = array("q", (offsets[step] for step in self._again_steps))
        self.envelopes, self.index, self.watch = {}, RowIndex(), AlertWatch(self.watch.rules)
        self.count = self.last_step = 0
        rows = self._rows(file, BEGINNING)
        while batch := list(islice(rows, _BATCH_ROWS)):
            self._add([row for row, _ in batch], [offset for _, offset in batch])

    def _rows(self, file: BinaryIO, note: RowNote) -> Iterator[tuple[Row, int]]:
        """The rows that count, in the order of their steps, each with a position to read on from."""
        newest = note.after_step
        at = bisect.bisect_right(self._again_steps, note.after_step)
        for row, offset in rows_from(file, note.offset, self.end):
            if row["step"] <= newest:
                continue
            newest = row["step"]
            while at < len(self._again_steps) and self._again_steps[at] <= newest:
                later = self._row_at(file, self._again_offsets[at])
                if later is not None:
                    yield later, offset
                at += 1
            if not at or self._again_steps[at - 1] != newest:
                yield row, offset

    def _row_at(self, file: BinaryIO, offset: int) -> Row | None:
        return next((row for row, at in rows_from(file, offset, self.end) if at == offset), None)


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 1000


def _finite(steps: list[int], values: list[float]) -> tuple[Sequence[int], Sequence[float]]:
    """Without the points that cannot be drawn."""
    if math.isfinite(sum(values)):
        return steps, values
    finite = [point for point in zip(steps, values, strict=True) if math.isfinite(point[1])]
    return [step for step, _ in finite], [value for _, value in finite]
