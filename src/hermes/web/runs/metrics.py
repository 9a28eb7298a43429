"""The metrics of a run, read again only where the file has grown.

A metrics file of a million steps is read once and kept as curves, positions and its newest rows; after that
every look reads the bytes that were appended. A file that was rewritten (the run resumed from an earlier
step) is read again from its beginning.
"""

from __future__ import annotations

import bisect
import json
import os
import threading
from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from hermes.training.monitor.incidents.alerts import Alert, AlertRule, AlertWatch
from hermes.web.runs.curves import HIDDEN, is_point
from hermes.web.runs.envelope import CurveEnvelope

_MAX_FILES = 32
_RECENT_ROWS = 2000
_CHUNK_BYTES = 16 << 20

Row = dict[str, Any]


class RunSeries:
    """What is kept of one file."""

    def __init__(self, path: Path, rules: Sequence[AlertRule] = ()) -> None:
        self._path = path
        self._steps = array("q")
        self._times_s = array("d")
        self._offsets = array("q")
        self._watch = AlertWatch(rules)
        self.envelopes: dict[str, CurveEnvelope] = {}
        self.recent: deque[Row] = deque(maxlen=_RECENT_ROWS)
        """The newest rows, oldest first."""

    @property
    def count(self) -> int:
        return len(self._steps)

    @property
    def last_step(self) -> int:
        """0: none."""
        return self._steps[-1] if self._steps else 0

    @property
    def rules(self) -> tuple[AlertRule, ...]:
        return self._watch.rules

    @property
    def alerts(self) -> list[Alert]:
        return self._watch.alerts

    def add(self, row: Row, offset: int) -> None:
        """The row of a later step."""
        step = row["step"]
        self._steps.append(step)
        self._times_s.append(float(row.get("time_s") or 0.0))
        self._offsets.append(offset)
        for name, value in row.items():
            if name not in HIDDEN and is_point(value):
                envelope = self.envelopes.get(name)
                if envelope is None:
                    envelope = self.envelopes[name] = CurveEnvelope()
                envelope.add(step, value)
        self._watch.add(step, row)
        self.recent.append(row)

    def rows_after(self, step: int) -> list[Row] | None:
        """The rows of later steps; None: there are more than are kept."""
        if self.recent and self.count > len(self.recent) and step < self.recent[0]["step"] - 1:
            return None
        return [row for row in self.recent if row["step"] > step]

    def find(self, step: int) -> tuple[Row, float] | None:
        """The row of a step, and when the step before it ended, in seconds; None: there is no such step."""
        at = bisect.bisect_left(self._steps, step)
        if at == len(self._steps) or self._steps[at] != step:
            return None
        with self._path.open("rb") as file:
            file.seek(self._offsets[at])
            row = _row(file.readline())
        return None if row is None else (row, self._times_s[at - 1] if at else 0.0)

    def offsets(self) -> dict[int, int]:
        """Step → position of its row in the file."""
        return dict(zip(self._steps, self._offsets, strict=True))

    def step_at(self, at_ms: float) -> int:
        """The step that had been made at that time; 0: none."""
        position = bisect.bisect_right(self._times_s, at_ms / 1000)
        return self._steps[position - 1] if position else 0


class _CachedFile:
    """One file; used by one thread at a time, which holds `lock`."""

    def __init__(self, path: Path) -> None:
        self.lock = threading.Lock()
        self._path = path
        self._begin(0, ())

    def _begin(self, inode: int, rules: Sequence[AlertRule]) -> None:
        self.series = RunSeries(self._path, rules)
        self._inode = inode
        self._size = 0
        self._partial = b""

    def refresh(self, rules: tuple[AlertRule, ...]) -> None:
        """Reads what was appended; everything if the file is another one, or the rules are others."""
        try:
            with self._path.open("rb") as file:
                state = os.fstat(file.fileno())
                replaced = self._inode != state.st_ino or self._size > state.st_size
                if replaced or self.series.rules != rules:
                    self._begin(state.st_ino, rules)
                file.seek(self._size)
                self._read_on(file, state.st_size)
        except OSError:
            self._begin(0, rules)

    def _read_on(self, file: BinaryIO, size: int) -> None:
        replaced: dict[int, tuple[Row, int]] = {}
        while self._size < size and (chunk := file.read(min(_CHUNK_BYTES, size - self._size))):
            offset = self._size - len(self._partial)
            self._size += len(chunk)
            lines = (self._partial + chunk).split(b"\n")
            self._partial = lines.pop()
            for line in lines:
                row = _row(line)
                if row is not None and (row["step"] > self.series.last_step or not self.series.count):
                    self.series.add(row, offset)
                elif row is not None:
                    replaced[row["step"]] = (row, offset)
                offset += len(line) + 1
        if replaced:
            self._make_again(file, replaced)

    def _make_again(self, file: BinaryIO, replaced: dict[int, tuple[Row, int]]) -> None:
        """Steps that were written twice: the later rows count."""
        offsets = self.series.offsets() | {step: offset for step, (_, offset) in replaced.items()}
        series = RunSeries(self._path, self.series.rules)
        for step in sorted(offsets):
            file.seek(offsets[step])
            row = replaced[step][0] if step in replaced else _row(file.readline())
            if row is not None:
                series.add(row, offsets[step])
        self.series = series


class MetricsCache:
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, _CachedFile] = {}

    @contextmanager
    def reading(self, path: Path, rules: Sequence[AlertRule] = ()) -> Iterator[RunSeries]:
        """The series as the file is now. It does not change within the `with`."""
        with self._lock:
            cached = self._files.pop(path) if path in self._files else _CachedFile(path)
            self._files[path] = cached
            while len(self._files) > _MAX_FILES:
                self._files.pop(next(iter(self._files)))
        with cached.lock:
            cached.refresh(tuple(rules))
            yield cached.series

    def version(self, path: Path) -> tuple[int, int]:
        """Changes whenever the file does."""
        try:
            state = path.stat()
        except OSError:
            return (0, 0)
        return (state.st_ino, state.st_size)


def _row(line: bytes) -> Row | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        return None
    return row
