"""The metrics of the runs that were looked at last, read on as their files grow."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hermes.training.monitor.incidents.alerts import AlertRule
from hermes.training.monitor.series import RunSeries

_MAX_FILES = 32


@dataclass(slots=True)
class _CachedFile:
    series: RunSeries
    lock: threading.Lock = field(default_factory=threading.Lock)


class MetricsCache:
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, _CachedFile] = {}

    @contextmanager
    def reading(self, path: Path, rules: Sequence[AlertRule] = ()) -> Iterator[RunSeries]:
        """The series as the file is now. It does not change within the `with`."""
        with self._lock:
            cached = self._files.pop(path, None) or _CachedFile(RunSeries(path))
            self._files[path] = cached
            while len(self._files) > _MAX_FILES:
                self._files.pop(next(iter(self._files)))
        with cached.lock:
            cached.series = cached.series.refreshed(rules)
            yield cached.series

    def version(self, path: Path) -> tuple[int, int, int]:
        """Changes whenever the file does."""
        try:
            state = path.stat()
        except OSError:
            return (0, 0, 0)
        return (state.st_ino, state.st_size, state.st_mtime_ns)
