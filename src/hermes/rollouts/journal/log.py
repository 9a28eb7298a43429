"""The thread that writes the log: everything queued is written with one write and one flush.

When the callback of a `LogWrite` receives a `LogReceipt`, its records have reached the disk (fdatasync); when
it receives an error, none of them has. Callbacks run on the event loop, in the order of `put`. After a failed
flush nothing more is written, because the contents of the disk are unknown; after a failed write (a full
disk) the next one is tried.
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

_MAX_PARTS = 1024  # the limit of one writev


class LogRecord(NamedTuple):
    """A record to write."""

    kind: RecordKind
    parts: tuple[bytes, ...] = ()
    source: RecordLocation | None = None
    """For a copy: where the payload is read from when it is written."""


class LogReceipt(NamedTuple):
    """Where a write was stored."""

    locations: list[RecordLocation]
    """Where its groups are, in order."""
    number: int
    """The number of its last record."""


Outcome: TypeAlias = LogReceipt | StoreError
OnWritten: TypeAlias = Callable[[Outcome], Iterable[None]]
"""Receives the outcome of a write. The iterable it returns is consumed step by step: between steps the event
loop serves other requests, but no later callback starts before it is exhausted."""


@dataclass(slots=True, eq=False)
class LogWrite:
    """Records that are written together, at the start of a new segment if `rotate`."""

    records: Iterable[LogRecord]
    """Consumed once, in the thread that writes: many small records take a while to build."""
    on_written: OnWritten
    rotate: bool = False


class Log:
    """Owns the newest segment. Call `put` and `close` from the event loop's thread."""

    def __init__(self, directory: Path, index: int, last_number: int) -> None:
        self._directory = directory
        self._index = index
        self._number = last_number
        self._queue: queue.SimpleQueue[LogWrite | LogSegment | None] = queue.SimpleQueue()
        self._loop = asyncio.get_running_loop()
        self._failed: StoreError | None = None
        self.current = self._create()
        self._outcomes: deque[tuple[OnWritten, Outcome]] = deque()
        """Callbacks that have not run yet, in order."""
        self._steps: Iterator[None] | None = None
        """The rest of the callback that is running."""
        self.flushes = 0
        self.flush_s = 0.0
        self._thread = threading.Thread(target=self._work, name="rollouts-log", daemon=True)
        self._thread.start()

    def put(self, operation: LogWrite) -> None:
        self._queue.put(operation)

    def delete(self, segment: LogSegment) -> None:
        self._queue.put(segment)

    async def close(self) -> None:
        """Writes what is queued and ends the thread."""
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
        except OSError:  # no room for a new file: continue with the current one
            segment_path(self._directory, self._index).unlink(missing_ok=True)
            self._index -= 1

    def _write(self, operations: list[LogWrite]) -> None:
        if not operations:
            return
        segment = self.current
        before = segment.size
        outcomes: list[tuple[OnWritten, Outcome]] = []
        parts: list[bytes] = []
        for operation in operations:
            try:
                locations = self._lay_out(operation.records, segment, parts)
                outcomes.append((operation.on_written, LogReceipt(locations, self._number)))
            except (OSError, StoreError) as error:  # the source of a copy cannot be read
                outcomes.append((operation.on_written, StoreError(str(error))))
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
            outcomes = [(on_written, failure) for on_written, _ in outcomes]
        with contextlib.suppress(RuntimeError):  # the loop is closed: nothing waits for the outcome
            self._loop.call_soon_threadsafe(self._finish, outcomes)

    def _lay_out(
        self, records: Iterable[LogRecord], segment: LogSegment, parts: list[bytes]
    ) -> list[RecordLocation]:
        """Adds the bytes of the records to `parts`; returns the locations of the groups among them."""
        locations: list[RecordLocation] = []
        for record in records:
            payload = record.parts
            if source := record.source:
                payload = (source.segment.read(source.start, source.body), source.read())
            self._number += 1
            head = header(self._number, record.kind, payload)
            start = segment.size + len(head)
            segment.size = start + sum(map(len, payload))
            segment.last_number = self._number
            if record.kind in (RecordKind.GROUP, RecordKind.COPY):
                locations.append(RecordLocation(segment, start, start + len(payload[0]), segment.size))
            parts += head, *payload
        return locations

    def _finish(self, outcomes: list[tuple[OnWritten, Outcome]]) -> None:
        self._outcomes.extend(outcomes)
        if self._steps is None:
            self._run_callbacks()

    def _run_callbacks(self) -> None:
        """Runs the callbacks; yields to the event loop between their steps."""
        while self._steps or self._outcomes:
            if self._steps is None:
                on_written, outcome = self._outcomes.popleft()
                self._steps = iter(on_written(outcome))
            for _ in self._steps:
                self._loop.call_soon(self._run_callbacks)
                return
            self._steps = None

    def _flush(self, segment: LogSegment) -> StoreError | None:
        started_s = self._loop.time()
        try:
            getattr(os, "fdatasync", os.fsync)(segment.fd)  # macOS has only fsync
        except OSError as error:
            return StoreError(
                f"cannot flush {segment.path}: {error.strerror}", "check the disk, then restart"
            )
        self.flushes += 1
        self.flush_s += self._loop.time() - started_s
        return None


def _write_all(fd: int, parts: list[bytes]) -> None:
    for first in range(0, len(parts), _MAX_PARTS):
        chunk: list[bytes | memoryview] = list(parts[first : first + _MAX_PARTS])
        while chunk:
            written = os.writev(fd, chunk)
            while chunk and written >= len(chunk[0]):
                written -= len(chunk.pop(0))
            if chunk:
                chunk[0] = memoryview(chunk[0])[written:]
