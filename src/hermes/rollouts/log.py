"""The thread that writes the log: everything queued goes to disk in one write and one flush.

An operation whose `done` gets places has reached the disk (fdatasync); one whose `done` gets an error has
left no trace. These calls come on the event loop, in the order of `put`. After a failed flush nothing is
written any more, because nobody can say what the disk holds; after a failed write (a full disk) the next one
is tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from hermes.errors import StoreError
from hermes.rollouts.segment import MAGIC, Kind, Place, Segment, header, segment_path

_MOST_PARTS = 1024  # what one writev takes


class Draft(NamedTuple):
    """A record to write. `number` is given by the journal."""

    number: int
    kind: Kind
    parts: tuple[bytes, ...]
    group_id: int | None = None
    source: Place | None = None
    """For a copy: where the payload is read from when it is written."""


@dataclass(slots=True, eq=False)
class Operation:
    """Records that are written together, at the start of a new segment if `rotate`."""

    drafts: tuple[Draft, ...]
    done: Callable[[list[Place] | StoreError], None]
    """Gets the places of the records that are groups, or why nothing was written."""
    rotate: bool = False
    places: list[Place] = field(default_factory=list)


class Log:
    """Owns the newest segment. `put` and `close` belong to the event loop's thread."""

    def __init__(self, directory: Path, index: int) -> None:
        self._directory = directory
        self._index = index
        self._queue: queue.SimpleQueue[Operation | Segment | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._failed: StoreError | None = None
        self.current = self._create()
        self.flushes = 0
        self.flush_s = 0.0
        self._thread = threading.Thread(target=self._work, name="rollouts-log", daemon=True)
        self._thread.start()

    def put(self, operation: Operation) -> None:
        self._queue.put(operation)

    def delete(self, segment: Segment) -> None:
        self._queue.put(segment)

    async def close(self) -> None:
        """Writes what is queued and ends."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _create(self) -> Segment:
        segment = Segment(segment_path(self._directory, self._index), create=True)
        os.write(segment.fd, MAGIC)
        segment.size = len(MAGIC)
        directory = os.open(self._directory, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return segment

    def _work(self) -> None:
        ending = False
        while not ending:
            items = [self._queue.get()]
            while not self._queue.empty():
                items.append(self._queue.get())
            ending = None in items
            self._commit([item for item in items if isinstance(item, Operation)])
            for item in items:
                if isinstance(item, Segment):
                    item.path.unlink(missing_ok=True)

    def _commit(self, operations: list[Operation]) -> None:
        waiting: list[Operation] = []
        for operation in operations:
            if operation.rotate:
                self._write(waiting)
                waiting = []
                self._rotate()
            waiting.append(operation)
        self._write(waiting)

    def _rotate(self) -> None:
        self._index += 1
        try:
            self.current = self._create()
        except OSError:  # no room for a file: go on with the one there is
            segment_path(self._directory, self._index).unlink(missing_ok=True)
            self._index -= 1

    def _write(self, operations: list[Operation]) -> None:
        if not operations:
            return
        segment = self.current
        before = segment.size
        written: list[Operation] = []
        parts: list[bytes] = []
        for operation in operations:
            try:
                parts += _laid_out(operation, segment)
                written.append(operation)
            except (OSError, StoreError) as error:  # what was to be copied cannot be read
                self._tell([operation], StoreError(str(error)))
        outcome = self._failed
        try:
            if outcome is None:
                _write_all(segment.fd, parts)
                outcome = self._failed = self._flush(segment)
        except OSError as error:
            segment.size = before
            os.ftruncate(segment.fd, before)
            outcome = StoreError(f"cannot write to {segment.path}: {error.strerror}", "free some disk space")
        self._tell(written, outcome)

    def _tell(self, operations: list[Operation], outcome: StoreError | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits for the outcome
            self._loop.call_soon_threadsafe(_finish, operations, outcome)

    def _flush(self, segment: Segment) -> StoreError | None:
        started_s = self._loop.time()
        try:
            os.fdatasync(segment.fd)
        except OSError as error:
            return StoreError(
                f"cannot flush {segment.path}: {error.strerror}", "check the disk, then restart"
            )
        self.flushes += 1
        self.flush_s += self._loop.time() - started_s
        return None


def _laid_out(operation: Operation, segment: Segment) -> list[bytes]:
    """The bytes of an operation; notes where its groups will lie."""
    laid_out: list[bytes] = []
    for draft in operation.drafts:
        parts = draft.parts
        if source := draft.source:
            parts = (source.segment.read(source.start, source.body), source.read())
        head = header(draft.number, draft.kind, parts)
        start = segment.size + len(head)
        segment.size = start + sum(map(len, parts))
        segment.last_number = draft.number
        if draft.group_id is not None:
            operation.places.append(Place(segment, start, start + len(parts[0]), segment.size))
        laid_out += head, *parts
    return laid_out


def _write_all(fd: int, parts: list[bytes]) -> None:
    for first in range(0, len(parts), _MOST_PARTS):
        chunk: list[bytes | memoryview] = list(parts[first : first + _MOST_PARTS])
        while chunk:
            written = os.writev(fd, chunk)
            while chunk and written >= len(chunk[0]):
                written -= len(chunk.pop(0))
            if chunk:
                chunk[0] = memoryview(chunk[0])[written:]


def _finish(operations: list[Operation], outcome: StoreError | None) -> None:
    for operation in operations:
        operation.done(operation.places if outcome is None else outcome)
