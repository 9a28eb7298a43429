"""An append-only file of JSON lines that survives a kill at any moment.

A line is in the file whole or not at all: a write that fails is undone, and a line that a killed process
left half-written (the torn tail) is skipped by readers and cut by the next append. Several processes may
append to one file; each append holds the file's lock. With `fsync`, a line that was appended also survives a
power failure.

A last line without a newline counts if it is a complete JSON object: only its newline is missing.
Not promised: that the lines of the middle are valid JSON; the reader parses them and decides.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Self

from hermes.disk.filelock import lock_descriptor, unlock_descriptor

_BLOCK_BYTES = 1 << 16
_CLOSED = -1


class AppendLog:
    """A log that is open for appending; created with mode 0600. Every failure is an OSError."""

    def __init__(self, path: Path, *, fsync: bool = True) -> None:
        self._fsync = fsync
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600)

    def append(self, lines: Iterable[str]) -> None:
        """Writes the lines together: all of them are in the file when this returns, none of them if it
        raises."""
        data = b"".join(line.encode("utf-8", "backslashreplace") + b"\n" for line in lines)
        lock_descriptor(self._descriptor)
        try:
            _repair_tail(self._descriptor)
            start = os.fstat(self._descriptor).st_size
            try:
                _write(self._descriptor, data)
                if self._fsync:
                    os.fsync(self._descriptor)
            except OSError:
                os.ftruncate(self._descriptor, start)  # half a line would merge with the next one
                raise
        finally:
            unlock_descriptor(self._descriptor)

    def close(self) -> None:
        """Does nothing if the log is closed already."""
        if self._descriptor != _CLOSED:
            os.close(self._descriptor)
            self._descriptor = _CLOSED

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


def read_lines(path: Path) -> Iterator[bytes]:
    """The complete lines, in order and without their newlines."""
    return (line for _, line in read_lines_at(path))


def read_lines_at(path: Path) -> Iterator[tuple[int, bytes]]:
    """Like `read_lines`, each line with the offset of its first byte."""
    offset = 0
    with path.open("rb") as file:
        for line in file:
            if line.endswith(b"\n") or _is_object(line):
                yield offset, line.removesuffix(b"\n")
            offset += len(line)


def repair(path: Path) -> bool:
    """Cuts a torn tail, as the next append would; whether the file was changed."""
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND)
    try:
        lock_descriptor(descriptor)
        changed = _repair_tail(descriptor)
        if changed:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)
    return changed


def _repair_tail(descriptor: int) -> bool:
    size = os.fstat(descriptor).st_size
    if size == 0 or os.pread(descriptor, 1, size - 1) == b"\n":
        return False
    start, tail = size, b""
    while start > 0 and b"\n" not in tail:
        length = min(_BLOCK_BYTES, start)
        start -= length
        tail = os.pread(descriptor, length, start) + tail
    tail = tail[tail.rfind(b"\n") + 1 :]
    if _is_object(tail):
        _write(descriptor, b"\n")
    else:
        os.ftruncate(descriptor, size - len(tail))
    return True


def _write(descriptor: int, data: bytes) -> None:
    while data:
        data = data[os.write(descriptor, data) :]


def _is_object(line: bytes) -> bool:
    """A prefix of a JSON object is never one itself."""
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
