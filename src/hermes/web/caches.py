"""Values that pages would compute for every request: exact, and made again when their source changes."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from hermes.store.browse.batches import RecordedRun, RunCount
from hermes.store.browse.reader import BrowseReader

Value = TypeVar("Value")
_IDLE_SHARE = 4


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


class TimedValue(Generic[Value]):
    """A value that is computed again when it is asked for after a time. Safe to use from any thread.

    What takes long is computed less often: it takes at most a fifth of the time.

    One thread computes it, and the others get what was there before; at the beginning they wait.
    """

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._lock = threading.Lock()
        self._state: tuple[float, Value] | None = None
        """When it is too old, and the value."""

    def get(self, compute: Callable[[], Value]) -> Value:
        state = self._state
        if state is not None and time.monotonic() < state[0]:
            return state[1]
        if not self._lock.acquire(blocking=state is None):
            assert state is not None
            return state[1]
        try:
            if self._state is state:
                started_s = time.monotonic()
                value = compute()
                took_s = time.monotonic() - started_s
                self._state = (time.monotonic() + max(self._period_s, _IDLE_SHARE * took_s), value)
            assert self._state is not None
            return self._state[1]
        finally:
            self._lock.release()
