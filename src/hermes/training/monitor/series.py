"""The metrics of runs: `metrics.jsonl` is read on from where the last look ended.

Up to MAX_ROWS rows of a run are kept. Of a longer one every k-th row is kept, and k doubles as it grows, so
that memory does not grow with the file. A file that was cut off, rewritten or replaced is read again from its
beginning. Of a step that was written twice the later row counts.
"""

from __future__ import annotations

import json
import math
import os
from collections import deque
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from hermes.training.monitor.incidents.alerts import Alert, AlertRule, AlertWatch

MAX_ROWS = 2000
LIVE_ROWS = 500
"""Newest rows that are kept whatever k is."""
HIDDEN = frozenset({"step", "time_s", "data/lease_id"})
"""Numbers of a row that are no curves."""
_TAIL_BYTES = 512

Row = dict[str, Any]


class RunSeries:
    """Used by one thread at a time."""

    def __init__(
        self, path: Path, rules: Sequence[AlertRule] = (), identity: tuple[int, int] | None = None
    ) -> None:
        """`identity`: device and inode of the file."""
        self.path = path
        self.count = 0
        """Steps."""
        self.latest: dict[str, float] = {}
        """The newest value of every metric."""
        self._rows: dict[int, Row] = {}
        """Every `_stride`-th row by step, in the order of steps."""
        self._stride = 1
        self._newest: deque[Row] = deque(maxlen=LIVE_ROWS + 1)
        self._watch = AlertWatch(rules)
        self._end = 0
        """Bytes of the file that have been read: its complete lines."""
        self._identity = identity
        self._tail = b""
        """The bytes before `_end`."""

    @property
    def last_step(self) -> int:
        """0: none."""
        return int(self._newest[-1]["step"]) if self._newest else 0

    @property
    def alerts(self) -> list[Alert]:
        return self._watch.alerts

    def refreshed(self, rules: Sequence[AlertRule]) -> RunSeries:
        """This with what was appended; a new one if the file is another one, or the rules are others."""
        try:
            file = self.path.open("rb")
        except OSError:
            return RunSeries(self.path, rules)
        with file:
            state = os.fstat(file.fileno())
            identity = (state.st_dev, state.st_ino)
            is_same = (identity, self._tail_of(file)) == (self._identity, self._tail)
            series = self if is_same and self._watch.rules == tuple(rules) else None
            series = series or RunSeries(self.path, rules, identity)
            series._read_on(file)
        return series

    def _read_on(self, file: BinaryIO) -> None:
        has_repeats = False
        for row, end in _rows_from(file, self._end):
            self._end = end
            if row is not None and self.count and row["step"] <= self.last_step:
                has_repeats = True
            elif row is not None:
                self._add(row)
        self._tail = self._tail_of(file)
        if has_repeats:
            self._make_again()

    def _make_again(self) -> None:
        """Steps were written twice: everything is made again with the later rows."""
        rows = self._read_all()
        self._rows, self._stride, self.count, self.latest = {}, 1, 0, {}
        self._newest.clear()
        self._watch = AlertWatch(self._watch.rules)
        for step in sorted(rows):
            self._add(rows[step])

    def points(self, name: str) -> tuple[list[int], list[float]]:
        """(steps, values) of a metric in the rows that are kept, with the newest one; finite values only."""
        rows = [*self._rows.values(), *islice(reversed(self._newest), 1)]
        points = {row["step"]: row[name] for row in rows if name in row and _is_finite(row[name])}
        return list(points), [float(value) for value in points.values()]

    def rows_after(self, step: int) -> list[Row] | None:
        """The rows of later steps; None: there are more than LIVE_ROWS."""
        rows = [row for row in self._newest if row["step"] > step]
        return None if len(rows) > LIVE_ROWS else rows

    def recent(self, count: int) -> list[Row]:
        """The newest rows, oldest first."""
        return list(self._newest)[-count:]

    def find(self, step: int) -> tuple[Row, float] | None:
        """The row of a step, and when the step before it ended, in seconds; None: there is no such step."""
        rows = self._rows if self._stride == 1 else self._read_all()
        before = max((earlier for earlier in rows if earlier < step), default=None)
        if step not in rows:
            return None
        return rows[step], 0.0 if before is None else _time_s(rows[before])

    def step_at(self, at_ms: float) -> int:
        """The step that had been made at that time, among those that are kept; 0: none."""
        return max((step for step, row in self._rows.items() if _time_s(row) <= at_ms / 1000), default=0)

    def _add(self, row: Row) -> None:
        """Adds the row of a later step."""
        if self.count % self._stride == 0:
            self._rows[row["step"]] = row
        self.count += 1
        self._newest.append(row)
        self._watch.add(row["step"], row)
        self.latest |= {name: float(value) for name, value in row.items() if _is_finite(value)}
        if len(self._rows) > MAX_ROWS:
            self._rows = dict(islice(self._rows.items(), 0, None, 2))
            self._stride *= 2

    def _read_all(self) -> dict[int, Row]:
        with self.path.open("rb") as file:
            return {
                row["step"]: row for row, end in _rows_from(file, 0) if row is not None and end <= self._end
            }

    def _tail_of(self, file: BinaryIO) -> bytes:
        length = min(_TAIL_BYTES, self._end)
        return os.pread(file.fileno(), length, self._end - length)


def _rows_from(file: BinaryIO, offset: int) -> Iterator[tuple[Row | None, int]]:
    """(row, position after it) of the complete lines from `offset` on; None: a line that is no row."""
    file.seek(offset)
    for line in file:
        if not line.endswith(b"\n"):
            return
        offset += len(line)
        yield _parse(line), offset


def _parse(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) and type(row.get("step")) is int else None


def _is_finite(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) < 1 << 1000 if isinstance(value, int) else math.isfinite(value)


def _time_s(row: Row) -> float:
    """When the row was written; 0: it does not say."""
    value = row.get("time_s")
    return float(value) if isinstance(value, int | float) else 0.0
