"""Makes changes durable, and stores the bytes of groups.

`append` records a change, then applies it to the state, in the order of the log; its future resolves after
both. `FileJournal` writes to a state directory: what it acknowledged survives kill -9 and power loss, and the
bytes of groups stay on disk until they are served. `MemoryJournal` stores the bytes in memory and records
nothing.

Old segments are deleted once none of their groups is needed. The live groups of a segment that is mostly dead
are copied to the newest one first, so the disk holds little more than what is queued.

After a restart the state is that of the newest snapshot, changed by every group and event numbered after it;
the bytes of groups may be in any segment. The torn end of the last segment is truncated, and with it a post
of which only some groups were written: its client was not answered, and sends all of them again. Damage
anywhere else, or a missing group that is still needed, is an error: going on would lose data silently.
"""

from __future__ import annotations

import asyncio
import functools
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Protocol, TypeVar

from hermes.core.json import JSONObject
from hermes.disk.filelock import FileLock
from hermes.disk.files import make_private_dirs
from hermes.errors import StoreError
from hermes.rollouts.core import events
from hermes.rollouts.core.queue import QueuedGroup
from hermes.rollouts.core.snapshot import describe, describe_group, read_group, restore
from hermes.rollouts.core.state import ApiState
from hermes.rollouts.journal.log import Log, LogRecord, LogWrite, Outcome
from hermes.rollouts.journal.segment import (
    MAGIC,
    LogSegment,
    RecordKind,
    RecordLocation,
    SegmentRecord,
    group_payload,
    list_segments,
    scan,
)

SEGMENT_BYTES = 64 << 20

_GROUPS_PER_STEP = 200

T = TypeVar("T")
A = TypeVar("A")
NewGroup = tuple[QueuedGroup, bytes]


class GroupJournal(Protocol):
    state: ApiState
    """The state it starts with; every change to it goes through `append`."""
    last_group_id: int
    """The highest ever used, so that no id is used twice."""

    def append(self, apply: Callable[[], T], event: JSONObject) -> asyncio.Future[T]:
        """Records an event, then calls `apply`. StoreError: nothing was recorded."""
        ...

    def append_groups(
        self, groups: Sequence[NewGroup], accept: Callable[[QueuedGroup], A], event: JSONObject | None
    ) -> asyncio.Future[list[A]]:
        """Records an event and the groups it announces; then calls `accept` for each group in order.

        Without an event there is one group. After a crash either all of it is in the log or nothing.
        """
        ...

    def readers(self, group_ids: Iterable[int]) -> list[Callable[[], bytes]]:
        """For each group a function that reads its bytes; call it in a thread. Valid until `forget`."""
        ...

    def forget(self, groups: Iterable[QueuedGroup]) -> None:
        """The bytes of these groups are not needed any more."""
        ...

    def figures(self) -> dict[str, float]:
        """Counters for the metrics page."""
        ...

    async def close(self) -> None: ...


class MemoryJournal:
    def __init__(self) -> None:
        self.state = ApiState()
        self.last_group_id = 0
        self._bodies: dict[int, bytes] = {}

    def append(self, apply: Callable[[], T], event: JSONObject) -> asyncio.Future[T]:
        return _completed_future(apply())

    def append_groups(
        self, groups: Sequence[NewGroup], accept: Callable[[QueuedGroup], A], event: JSONObject | None
    ) -> asyncio.Future[list[A]]:
        for group, body in groups:
            self._bodies[group.id] = body
        return _completed_future([accept(group) for group, _ in groups])

    def readers(self, group_ids: Iterable[int]) -> list[Callable[[], bytes]]:
        bodies = [self._bodies[group_id] for group_id in group_ids]
        return [functools.partial(bytes, body) for body in bodies]

    def forget(self, groups: Iterable[QueuedGroup]) -> None:
        for group in groups:
            self._bodies.pop(group.id, None)

    def figures(self) -> dict[str, float]:
        return {}

    async def close(self) -> None:
        self._bodies.clear()


class FileJournal:
    """The log in a state directory."""

    def __init__(self, directory: Path, now_s: float, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._segment_bytes = segment_bytes
        self._lock = _lock_directory(directory)
        try:
            recovered = recover(directory, now_s)
            self._log = Log(directory, recovered.last_index + 1, recovered.last_number)
        except BaseException as error:
            self._lock.release()
            if isinstance(error, OSError):
                raise StoreError(
                    f"cannot use {directory}: {error}", "free some disk space or repair the files"
                ) from error
            raise
        self.state = recovered.state
        self.last_group_id = recovered.last_group_id
        self._applied = recovered.last_number
        self._covered = 0
        """The newest durable snapshot covers every record up to this number."""
        self._locations = recovered.locations
        self._old_segments = recovered.segments
        for group_id, location in self._locations.items():
            location.segment.live[group_id] = location.end - location.body
        self._snapshot_pending = False
        self._write_snapshot(rotate=False)

    def append(self, apply: Callable[[], T], event: JSONObject) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def on_written(outcome: Outcome) -> tuple[()]:
            if isinstance(outcome, StoreError):
                _resolve(future, outcome)
            else:
                _resolve(future, apply())
                self._advance(outcome.number)
            return ()

        self._log.put(LogWrite([_event_record(event)], on_written))
        return future

    def append_groups(
        self, groups: Sequence[NewGroup], accept: Callable[[QueuedGroup], A], event: JSONObject | None
    ) -> asyncio.Future[list[A]]:
        future: asyncio.Future[list[A]] = asyncio.get_running_loop().create_future()

        def on_written(outcome: Outcome) -> Iterator[None]:
            if isinstance(outcome, StoreError):
                _resolve(future, outcome)
                return
            accepted: list[A] = []
            for (group, _), location in zip(groups, outcome.locations, strict=True):
                self._set_location(group.id, location)
                accepted.append(accept(group))
                if len(accepted) % _GROUPS_PER_STEP == 0:
                    yield
            _resolve(future, accepted)
            self._advance(outcome.number)

        self.last_group_id = max(self.last_group_id, *(group.id for group, _ in groups))
        records = (
            LogRecord(RecordKind.GROUP, group_payload(describe_group(group), body)) for group, body in groups
        )
        self._log.put(LogWrite(chain([_event_record(event)] if event else (), records), on_written))
        return future

    def readers(self, group_ids: Iterable[int]) -> list[Callable[[], bytes]]:
        return [self._locations[group_id].read for group_id in group_ids]

    def forget(self, groups: Iterable[QueuedGroup]) -> None:
        for group in groups:
            location = self._locations.pop(group.id, None)
            if location is not None:
                location.segment.live.pop(group.id, None)
                if not location.segment.live:
                    self._clean_up()

    def figures(self) -> dict[str, float]:
        segments = [*self._old_segments, self._log.current]
        return {
            "log_bytes": float(sum(segment.size for segment in segments)),
            "log_segments": float(len(segments)),
            "log_flushes_total": float(self._log.flushes),
            "log_flush_seconds_total": self._log.flush_s,
        }

    async def close(self) -> None:
        await self._log.close()
        self._lock.release()

    def _set_location(self, group_id: int, location: RecordLocation) -> None:
        self._locations[group_id] = location
        location.segment.live[group_id] = location.end - location.body

    def _advance(self, number: int) -> None:
        """Everything up to this record has been applied to the state."""
        self._applied = number
        if self._log.current.size > self._segment_bytes:
            self._write_snapshot(rotate=True)

    def _write_snapshot(self, *, rotate: bool) -> None:
        """Records the whole state, in a new segment if `rotate`; then old segments can be deleted."""
        if self._snapshot_pending:
            return
        self._snapshot_pending = True
        through = self._applied
        previous = self._log.current

        def on_written(outcome: Outcome) -> tuple[()]:
            self._snapshot_pending = False
            if not isinstance(outcome, StoreError):  # otherwise a later append tries again
                self._applied = outcome.number
                self._covered = through
                if self._log.current is not previous:
                    self._old_segments.append(previous)
                self._clean_up()
            return ()

        snapshot = {**describe(self.state), "through": through, "last_group_id": self.last_group_id}
        text = json.dumps(snapshot).encode()
        self._log.put(LogWrite([LogRecord(RecordKind.SNAPSHOT, (text,))], on_written, rotate))

    def _clean_up(self) -> None:
        """Deletes segments without live groups, and empties those with few."""
        for segment in list(self._old_segments):
            if segment.last_number > self._covered:
                continue
            if not segment.live:
                self._old_segments.remove(segment)
                self._log.delete(segment)
            elif not segment.emptying and sum(segment.live.values()) < self._segment_bytes // 4:
                segment.emptying = True
                for group_id in segment.live:
                    self._copy(group_id, self._locations[group_id])

    def _copy(self, group_id: int, source: RecordLocation) -> None:
        def on_written(outcome: Outcome) -> tuple[()]:
            if isinstance(outcome, StoreError):
                source.segment.emptying = False
                return ()
            self._applied = outcome.number
            if self._locations.get(group_id) is source:  # it was not deleted meanwhile
                del source.segment.live[group_id]
                self._set_location(group_id, outcome.locations[0])
                if not source.segment.live:
                    self._clean_up()
            return ()

        self._log.put(LogWrite([LogRecord(RecordKind.COPY, source=source)], on_written))


def _event_record(event: JSONObject) -> LogRecord:
    return LogRecord(RecordKind.EVENT, (json.dumps(event).encode(),))


def _resolve(future: asyncio.Future[T], result: T | StoreError) -> None:
    if future.done():
        return  # the waiting request was cancelled
    if isinstance(result, StoreError):
        future.set_exception(result)
    else:
        future.set_result(result)


def _completed_future(result: T) -> asyncio.Future[T]:
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future


def _lock_directory(directory: Path) -> FileLock:
    """Creates the directory if need be and keeps other servers out of it until the lock is released."""
    try:
        make_private_dirs(directory)
        lock = FileLock(directory / "lock")
        acquired = lock.acquire(blocking=False)
    except OSError as error:
        raise StoreError(
            f"cannot use {directory} as state directory: {error.strerror}", "choose another --state-dir"
        ) from error
    if not acquired:
        raise StoreError(
            f"another server uses the state directory {directory}", "stop it, or choose another --state-dir"
        )
    return lock


_HINT = "move the directory away to start afresh, or restore it from a backup"
_logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Recovered:
    state: ApiState = field(default_factory=ApiState)
    locations: dict[int, RecordLocation] = field(default_factory=dict)
    """Where the bytes of each group of the state are stored."""
    segments: list[LogSegment] = field(default_factory=list)
    last_number: int = 0
    last_group_id: int = 0
    last_index: int = 0


@dataclass(slots=True)
class _LogScan:
    groups: dict[int, QueuedGroup] = field(default_factory=dict)
    locations: dict[int, RecordLocation] = field(default_factory=dict)
    snapshot: JSONObject | None = None
    changes: list[tuple[int, int | JSONObject]] = field(default_factory=list)
    """Record number, and group id or event, of each change after the newest snapshot."""

    def add(self, record: SegmentRecord, segment: LogSegment) -> None:
        if record.kind in (RecordKind.GROUP, RecordKind.COPY):
            meta, location = record.group(segment)
            group = read_group(meta, location.end - location.body)
            self.groups[group.id], self.locations[group.id] = group, location
            if record.kind is RecordKind.GROUP:
                self.changes.append((record.number, group.id))
        elif record.kind is RecordKind.EVENT:
            self.changes.append((record.number, json.loads(record.payload)))
        else:
            snapshot: JSONObject = json.loads(record.payload)
            self.snapshot = snapshot
            self.changes = [change for change in self.changes if change[0] > snapshot["through"]]


def recover(directory: Path, now_s: float) -> Recovered:
    """Reads the directory, which may be empty. Leases bound to a connection are marked as lost."""
    log, recovered = _LogScan(), Recovered()
    paths = list_segments(directory)
    for path in paths:
        recovered.last_index = int(path.stem)
        if path == paths[-1] and path.stat().st_size < len(MAGIC):
            path.unlink()  # the server crashed while writing the file's first bytes
            continue
        segment = LogSegment(path)
        _read(segment, log, last=path == paths[-1])
        recovered.segments.append(segment)
        recovered.last_number = max(recovered.last_number, segment.last_number)
    snapshot_last_id = log.snapshot["last_group_id"] if log.snapshot else 0
    recovered.last_group_id = max(snapshot_last_id, *log.groups, 0)
    try:
        recovered.state = _rebuild(log, now_s)
        for group in recovered.state.groups():
            recovered.locations[group.id] = log.locations[group.id]
    except (KeyError, TypeError, ValueError) as error:
        raise StoreError(f"the state in {directory} is inconsistent: {error!r}", _HINT) from error
    return recovered


def _read(segment: LogSegment, log: _LogScan, *, last: bool) -> None:
    if segment.read(0, len(MAGIC)) != MAGIC:
        raise StoreError(f"{segment.path} is not a log that this version of Hermes can read", _HINT)
    end = len(MAGIC)
    for records in _whole_writes(scan(segment)):
        for record in records:
            log.add(record, segment)
            end = record.start + len(record.payload)
            segment.last_number = record.number
    if end == segment.size:
        return
    if not last:
        raise StoreError(f"{segment.path} is damaged at byte {end} of {segment.size}", _HINT)
    _logger.warning("%s: truncated %d bytes that were never acknowledged", segment.path, segment.size - end)
    os.ftruncate(segment.fd, end)
    os.fsync(segment.fd)  # before a newer segment exists: then a torn end here would be damage
    segment.size = end


def _whole_writes(records: Iterable[SegmentRecord]) -> Iterator[list[SegmentRecord]]:
    """The records of a post together, any other alone; the last post only if all of its groups are there."""
    post: list[SegmentRecord] = []
    missing = 0
    for record in records:
        post.append(record)
        if missing:
            missing -= 1
        elif record.kind is RecordKind.EVENT:
            missing = events.announced_groups(json.loads(record.payload))
        if not missing:
            yield post
            post = []


def _rebuild(log: _LogScan, now_s: float) -> ApiState:
    state = restore(log.snapshot, log.groups, now_s) if log.snapshot else ApiState()
    for _, change in log.changes:
        if isinstance(change, int):
            state.accept(log.groups[change])
        else:
            events.replay(state, change, log.groups, now_s)
    for lease in list(state.leases.values()):
        if lease.expires_s is None:
            state.mark_lost(lease.id)
    return state
