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
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, TypeAlias

from hermes.errors import StoreError
from hermes.rollouts.journal.segment import (
    MAGIC,
    LogSegment,
    RecordKind,
    RecordLocation,
    header,
    segment_path,
)

_MOST_PARTS = 1024  # what one writev takes


class LogRecord(NamedTuple):
    """A record to write."""

    kind: RecordKind
    parts: tuple[bytes, ...] = ()
    source: RecordLocation | None = None
    """For a copy: where the payload is read from when it is written."""


class LogReceipt(NamedTuple):
    """What became of an operation."""

    places: list[RecordLocation]
    """Where its groups lie, in order."""
    number: int
    """Of its last record."""


Outcome: TypeAlias = LogReceipt | StoreError
Done: TypeAlias = Callable[[Outcome], Iterable[None]]
"""Told where all is, or why nothing was written. What it returns is gone through step by step; between steps
other requests have a turn, but no later operation is told before it is through."""


@dataclass(slots=True, eq=False)
class LogWrite:
    """Records that are written together, at the start of a new segment if `rotate`."""

    drafts: Iterable[LogRecord]
    """Gone through once, in the thread that writes: many small records take a while to make."""
    done: Done
    rotate: bool = False


class Log:
    """Owns the newest segment. `put` and `close` belong to the event loop's thread."""

    def __init__(self, directory: Path, index: int, last_number: int) -> None:
        self._directory = directory
        self._index = index
        self._number = last_number
        self._queue: queue.SimpleQueue[LogWrite | LogSegment | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._failed: StoreError | None = None
        self.current = self._create()
        self._outcomes: deque[tuple[Done, Outcome]] = deque()
        """Of operations that are yet to be told, in their order."""
        self._steps: Iterator[None] | None = None
        """Of the operation that is being told."""
        self.flushes = 0
        self.flush_s = 0.0
        self._thread = threading.Thread(target=self._work, name="rollouts-log", daemon=True)
        self._thread.start()

    def put(self, operation: LogWrite) -> None:
        self._queue.put(operation)

    def delete(self, segment: LogSegment) -> None:
        self._queue.put(segment)

    async def close(self) -> None:
        """Writes what is queued and ends."""
        self._queue.put(None)
        await asyncio.to_thread(self._thread.join)

    def _create(self) -> LogSegment:
        segment = LogSegment(segment_path(self._directory, self._index), create=True)
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
            self._commit([item for item in items if isinstance(item, LogWrite)])
            for item in items:
                if isinstance(item, LogSegment):
                    item.path.unlink(missing_ok=True)

    def _commit(self, operations: list[LogWrite]) -> None:
        waiting: list[LogWrite] = []
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

    def _write(self, operations: list[LogWrite]) -> None:
        if not operations:
            return
        segment = self.current
        before = segment.size
        written: list[tuple[Done, Outcome]] = []
        parts: list[bytes] = []
        for operation in operations:
            try:
                places = self._lay_out(operation.drafts, segment, parts)
                written.append((operation.done, LogReceipt(places, self._number)))
            except (OSError, StoreError) as error:  # what was to be copied cannot be read
                written.append((operation.done, StoreError(str(error))))
        failure = self._failed
        try:
            if failure is None:
                _write_all(segment.fd, parts)
                failure = self._failed = self._flush(segment)
        except OSError as error:
            segment.size = before
            os.ftruncate(segment.fd, before)
            failure = StoreError(f"cannot write to {segment.path}: {error.strerror}", "free some disk space")
        if failure is not None:
            written = [(done, failure) for done, _ in written]
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits for the outcome
            self._loop.call_soon_threadsafe(self._finish, written)

    def _lay_out(
        self, drafts: Iterable[LogRecord], segment: LogSegment, parts: list[bytes]
    ) -> list[RecordLocation]:
        """Adds the bytes of the records to `parts`; returns where the groups among them will lie."""
        places: list[RecordLocation] = []
        for draft in drafts:
            payload = draft.parts
            if source := draft.source:
                payload = (source.segment.read(source.start, source.body), source.read())
            self._number += 1
            head = header(self._number, draft.kind, payload)
            start = segment.size + len(head)
            segment.size = start + sum(map(len, payload))
            segment.last_number = self._number
            if draft.kind in (RecordKind.GROUP, RecordKind.COPY):
                places.append(RecordLocation(segment, start, start + len(payload[0]), segment.size))
            parts += head, *payload
        return places

    def _finish(self, outcomes: list[tuple[Done, Outcome]]) -> None:
        self._outcomes.extend(outcomes)
        if self._steps is None:
            self._go_on()

    def _go_on(self) -> None:
        """Tells operations their outcomes; gives the loop a turn between steps."""
        while self._steps or self._outcomes:
            if self._steps is None:
                done, outcome = self._outcomes.popleft()
                self._steps = iter(done(outcome))
            for _ in self._steps:
                self._loop.call_soon(self._go_on)
                return
            self._steps = None

    def _flush(self, segment: LogSegment) -> StoreError | None:
        started_s = self._loop.time()
        try:
            getattr(os, "fdatasync", os.fsync)(segment.fd)  # macOS has the latter only
        except OSError as error:
            return StoreError(
                f"cannot flush {segment.path}: {error.strerror}", "check the disk, then restart"
            )
        self.flushes += 1
        self.flush_s += self._loop.time() - started_s
        return None


def _write_all(fd: int, parts: list[bytes]) -> None:
    for first in range(0, len(parts), _MOST_PARTS):
        chunk: list[bytes | memoryview] = list(parts[first : first + _MOST_PARTS])
        while chunk:
            written = os.writev(fd, chunk)
            while chunk and written >= len(chunk[0]):
                written -= len(chunk.pop(0))
            if chunk:
                chunk[0] = memoryview(chunk[0])[written:]
