"""A `metrics.jsonl` that is followed as it grows: a look reads what was appended since the one before.

A file that was cut off, rewritten or replaced is read again from its beginning. What was read of a long file
is kept beside it (`metrics.curves`), by the trainer and by any reader, so that no process has to read it all.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from hermes.training.monitor.incidents.alerts import AlertRule
from hermes.training.monitor.series.saved import CURVES, load_series, save_series
from hermes.training.monitor.series.series import RunSeries

SAVE_EVERY_BYTES = 4 << 20
_TAIL_BYTES = 4096


class FollowedMetrics:
    """One file; used by one thread at a time."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.series = RunSeries(path)
        self._identity: tuple[int, int] | None = None
        self._tail = b""
        """The bytes before `series.end`."""
        self._saved_end = 0

    def refresh(self, rules: Sequence[AlertRule] = (), *, save_after_bytes: int = SAVE_EVERY_BYTES) -> None:
        """Reads what was appended; everything if the file is another one, or the rules are others."""
        try:
            file = self._path.open("rb")
        except OSError:
            self.series, self._identity = RunSeries(self._path, rules), None
            return
        with file:
            state = os.fstat(file.fileno())
            identity = (state.st_dev, state.st_ino)
            if identity != self._identity or self.series.rules != tuple(rules) or not self._fits(file, state):
                self._identity = identity
                self.series = load_series(self._path, rules, file) or RunSeries(self._path, rules)
                self._saved_end = self.series.end
            self.series.read_on(file, state.st_size)
            self._tail = os.pread(file.fileno(), *self._tail_place())
            if self.series.end - self._saved_end >= save_after_bytes:
                save_series(self.series, file)
                self._saved_end = self.series.end

    def _fits(self, file: BinaryIO, state: os.stat_result) -> bool:
        """Whether the bytes that were read last are still where they were."""
        return state.st_size >= self.series.end and os.pread(file.fileno(), *self._tail_place()) == self._tail

    def _tail_place(self) -> tuple[int, int]:
        length = min(_TAIL_BYTES, self.series.end)
        return length, self.series.end - length


class CurvesSink:
    """Keeps the curves of a run that grows, so that the first look at a long one is quick.

    It comes after the sink that writes `metrics.jsonl`.
    """

    name = CURVES

    def __init__(self, metrics: Path, rules: Sequence[AlertRule]) -> None:
        self._metrics = metrics
        self._rules = tuple(rules)
        self._saved_bytes = 0

    def rewind(self, step: int) -> None:
        """The metrics are written anew."""
        self._metrics.with_name(CURVES).unlink(missing_ok=True)
        self._saved_bytes = 0

    def write(self, step: int, values: Mapping[str, float]) -> None:
        size = self._metrics.stat().st_size
        if size - self._saved_bytes >= SAVE_EVERY_BYTES:
            FollowedMetrics(self._metrics).refresh(self._rules, save_after_bytes=1)
            self._saved_bytes = size

    def close(self) -> None:
        """Nothing to do: what follows the last save is short."""
