"""The metrics of a run, read again only where the file has grown.

A metrics file of a million steps is read once; after that every look reads the bytes that were appended. A
file that was rewritten (the run resumed from an earlier step) is read again from its beginning.
"""

from __future__ import annotations

import json
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_MAX_FILES = 32


@dataclass
class _Cached:
    inode: int
    size: int = 0
    rows: dict[int, dict[str, Any]] = field(default_factory=dict)
    partial: bytes = b""


class MetricsCache:
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._files: dict[Path, _Cached] = {}

    def rows(self, path: Path) -> list[dict[str, Any]]:
        """One row a step, in order; of a step that was written twice the later row counts."""
        with self._lock:
            cached = self._read(path)
            return [] if cached is None else [cached.rows[step] for step in sorted(cached.rows)]

    def version(self, path: Path) -> tuple[int, int]:
        """Changes whenever the file does."""
        try:
            state = path.stat()
        except OSError:
            return (0, 0)
        return (state.st_ino, state.st_size)

    def _read(self, path: Path) -> _Cached | None:
        try:
            with path.open("rb") as file:
                state = path.stat()
                cached = self._files.pop(path, None)
                if cached is None or cached.inode != state.st_ino or cached.size > state.st_size:
                    cached = _Cached(state.st_ino)
                file.seek(cached.size)
                appended = file.read()
        except OSError:
            self._files.pop(path, None)
            return None
        cached.size += len(appended)
        lines = (cached.partial + appended).split(b"\n")
        cached.partial = lines.pop()
        for line in lines:
            row = _row(line)
            if row is not None:
                cached.rows[row["step"]] = row
        self._files[path] = cached
        while len(self._files) > _MAX_FILES:
            self._files.pop(next(iter(self._files)))
        return cached


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        row = json.loads(line)
    except ValueError:
        return None
    if not isinstance(row, dict) or not isinstance(row.get("step"), int):
        return None
    return row
