"""The metrics of runs, read again only where a file has grown."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hermes.training.monitor.incidents.alerts import AlertRule
from hermes.training.monitor.series.following import FollowedMetrics
from hermes.training.monitor.series.series import RunSeries

_MAX_FILES = 32


class MetricsCache:
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, tuple[FollowedMetrics, threading.Lock]] = {}

    @contextmanager
    def reading(self, path: Path, rules: Sequence[AlertRule] = ()) -> Iterator[RunSeries]:
        """The series as the file is now. It does not change within the `with`."""
        with self._lock:
            cached = self._files.pop(path, None) or (FollowedMetrics(path), threading.Lock())
            self._files[path] = cached
            while len(self._files) > _MAX_FILES:
                self._files.pop(next(iter(self._files)))
        followed, lock = cached
        with lock:
            followed.refresh(rules)
            yield followed.series

    def version(self, path: Path) -> tuple[int, int, int]:
        """Changes whenever the file does."""
        try:
            state = path.stat()
        except OSError:
            return (0, 0, 0)
        return (state.st_ino, state.st_size, state.st_mtime_ns)
