"""What pages would otherwise compute for every request: exact, and made again when its source changes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from hermes.store.browse.batches import RecordedRun, RunCount
from hermes.store.browse.reader import BrowseReader

Value = TypeVar("Value")


class KeyedCache(Generic[Value]):
    """One value, made again when its key changes. Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._entry: tuple[Hashable, Value] | None = None

    def get(self, key: Hashable, make: Callable[[], Value]) -> Value:
        with self._lock:
            if self._entry is None or self._entry[0] != key:
                self._entry = (key, make())
            return self._entry[1]


class RunCounts:
    """How many trajectories each run has. The store only grows, so that only what is new is counted."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._counts: dict[str, RunCount] = {}
        self._last = 0

    def read(self, reader: BrowseReader) -> list[RecordedRun]:
        with self._lock:
            for entry in reader.run_counts(self._last):
                before = self._counts.get(entry.run_id)
                total = entry.trajectories + (before.trajectories if before else 0)
                self._counts[entry.run_id] = entry._replace(trajectories=total)
                self._last = max(self._last, entry.last)
            return reader.recorded_runs(self._counts.values())

    def clear(self) -> None:
        """Another store is read from now on."""
        with self._lock:
            self._counts.clear()
            self._last = 0


def modified(paths: Iterable[Path]) -> tuple[tuple[str, int], ...]:
    """A key that changes when one of the files does, appears or goes."""
    return tuple(sorted((str(path), path.stat().st_mtime_ns) for path in paths if path.is_file()))
