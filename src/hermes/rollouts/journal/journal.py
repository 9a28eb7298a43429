"""Where changes are made to last, and where the bytes of groups are kept.

`append` resolves once the change is as safe as the journal can make it, and applies it then, in the order of
the log. `FileJournal` writes to a state directory: what it acknowledged survives kill -9 and power loss, the
bytes of groups stay on disk until they are served. `MemoryJournal` keeps them in memory and nothing else.

Old segments are deleted once none of their groups is needed. One that is mostly dead is emptied first, by
copying what lives to the newest, so the disk holds little more than what is queued.
"""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Protocol, TypeVar

from hermes.core.filelock import FileLock
from hermes.core.json import JSONObject
from hermes.errors import StoreError
from hermes.rollouts.core.queue import QueuedGroup
from hermes.rollouts.core.snapshot import describe, describe_group
from hermes.rollouts.core.state import ApiState
from hermes.rollouts.journal.log import Log, LogRecord, LogWrite, Outcome
from hermes.rollouts.journal.recover import recover
from hermes.rollouts.journal.segment import RecordKind, RecordLocation, framed_group

SEGMENT_BYTES = 64 << 20

_GROUPS_A_TURN = 200

T = TypeVar("T")
A = TypeVar("A")
NewGroup = tuple[QueuedGroup, bytes]


class GroupJournal(Protocol):
    state: ApiState
    """The state it starts with; every change to it goes through `append`."""
    last_group_id: int
    """The highest ever used, so that no id comes twice."""

    def append(self, apply: Callable[[], T], event: JSONObject) -> asyncio.Future[T]:
        """Records an event, then calls `apply`. StoreError: nothing was recorded."""
        ...

    def append_groups(
        self, groups: Sequence[NewGroup], accept: Callable[[QueuedGroup], A], event: JSONObject | None
    ) -> asyncio.Future[list[A]]:
        """Records groups, and an event after them, as one; then calls `accept` for each group in turn."""
        ...

    def reader(self, group_ids: Iterable[int]) -> list[Callable[[], bytes]]:
        """For each group a function that gets its bytes; call it in a thread. Good until `forget`."""
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
        return _resolved(apply())

    def append_groups(
        self, groups: Sequence[NewGroup], accept: Callable[[QueuedGroup], A], event: JSONObject | None
    ) -> asyncio.Future[list[A]]:
        for group, body in groups:
            self._bodies[group.id] = body
        return _resolved([accept(group) for group, _ in groups])

    def reader(self, group_ids: Iterable[int]) -> list[Callable[[], bytes]]:
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
                    f"cannot use {directory}: {error}", "free the disk or mend the files"
                ) from error
            raise
        self.state = recovered.state
        self.last_group_id = recovered.last_group_id
        self._applied = recovered.last_number
        self._covered = 0
        """The newest durable snapshot says everything up to this number."""
        self._places = recovered.places
        self._old = recovered.segments
        for group_id, place in self._places.items():
            place.segment.live[group_id] = place.end - place.body
        self._snapshot_under_way = False
        self._write_snapshot(rotate=False)

    def append(self, apply: Callable[[], T], event: JSONObject) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome) -> tuple[()]:
            if isinstance(outcome, StoreError):
                _tell(future, outcome)
            else:
                _tell(future, apply())
                self._advance(outcome.number)
            return ()

        self._log.put(LogWrite([_event_draft(event)], done))
        return future

    def append_groups(
        self, groups: Sequence[NewGroup], accept: Callable[[QueuedGroup], A], event: JSONObject | None
    ) -> asyncio.Future[list[A]]:
        future: asyncio.Future[list[A]] = asyncio.get_running_loop().create_future()

        def done(outcome: Outcome) -> Iterator[None]:
            if isinstance(outcome, StoreError):
                _tell(future, outcome)
                return
            accepted: list[A] = []
            for (group, _), place in zip(groups, outcome.places, strict=True):
                self._settle(group.id, place)
                accepted.append(accept(group))
                if len(accepted) % _GROUPS_A_TURN == 0:
                    yield
            _tell(future, accepted)
            self._advance(outcome.number)

        self.last_group_id = max(self.last_group_id, *(group.id for group, _ in groups))
        drafts = (
            LogRecord(RecordKind.GROUP, framed_group(describe_group(group), body)) for group, body in groups
        )
        self._log.put(LogWrite(chain(drafts, [_event_draft(event)] if event else ()), done))
        return future

    def reader(self, group_ids: Iterable[int]) -> list[Callable[[], bytes]]:
        return [self._places[group_id].read for group_id in group_ids]

    def forget(self, groups: Iterable[QueuedGroup]) -> None:
        for group in groups:
            place = self._places.pop(group.id, None)
            if place is not None:
                place.segment.live.pop(group.id, None)
                if not place.segment.live:
                    self._clean_up()

    def figures(self) -> dict[str, float]:
        segments = [*self._old, self._log.current]
        return {
            "log_bytes": float(sum(segment.size for segment in segments)),
            "log_segments": float(len(segments)),
            "log_flushes_total": float(self._log.flushes),
            "log_flush_seconds_total": self._log.flush_s,
        }

    async def close(self) -> None:
        await self._log.close()
        self._lock.release()

    def _settle(self, group_id: int, place: RecordLocation) -> None:
        self._places[group_id] = place
        place.segment.live[group_id] = place.end - place.body

    def _advance(self, number: int) -> None:
        """Everything up to this record has been applied to the state."""
        self._applied = number
        if self._log.current.size > self._segment_bytes:
            self._write_snapshot(rotate=True)

    def _write_snapshot(self, *, rotate: bool) -> None:
        """Says the whole state once more, in a new segment if so wanted; then old ones can go."""
        if self._snapshot_under_way:
            return
        self._snapshot_under_way = True
        through = self._applied
        former = self._log.current

        def done(outcome: Outcome) -> tuple[()]:
            self._snapshot_under_way = False
            if not isinstance(outcome, StoreError):  # otherwise a later append tries again
                self._applied = outcome.number
                self._covered = through
                if self._log.current is not former:
                    self._old.append(former)
                self._clean_up()
            return ()

        said = {**describe(self.state), "through": through, "last_group_id": self.last_group_id}
        text = json.dumps(said).encode()
        self._log.put(LogWrite([LogRecord(RecordKind.SNAPSHOT, (text,))], done, rotate))

    def _clean_up(self) -> None:
        """Deletes segments that nothing needs, and empties those that little needs."""
        for segment in list(self._old):
            if segment.last_number > self._covered:
                continue
            if not segment.live:
                self._old.remove(segment)
                self._log.delete(segment)
            elif not segment.emptying and sum(segment.live.values()) < self._segment_bytes // 4:
                segment.emptying = True
                for group_id in segment.live:
                    self._copy(group_id, self._places[group_id])

    def _copy(self, group_id: int, source: RecordLocation) -> None:
        def done(outcome: Outcome) -> tuple[()]:
            if isinstance(outcome, StoreError):
                source.segment.emptying = False
                return ()
            self._applied = outcome.number
            if self._places.get(group_id) is source:  # it was not served meanwhile
                del source.segment.live[group_id]
                self._settle(group_id, outcome.places[0])
                if not source.segment.live:
                    self._clean_up()
            return ()

        self._log.put(LogWrite([LogRecord(RecordKind.COPY, source=source)], done))


def _event_draft(event: JSONObject) -> LogRecord:
    return LogRecord(RecordKind.EVENT, (json.dumps(event).encode(),))


def _tell(future: asyncio.Future[T], result: T | StoreError) -> None:
    if future.done():
        return  # whoever waited was cancelled
    if isinstance(result, StoreError):
        future.set_exception(result)
    else:
        future.set_result(result)


def _resolved(result: T) -> asyncio.Future[T]:
    future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
    future.set_result(result)
    return future


def _lock_directory(directory: Path) -> FileLock:
    """Creates the directory if need be and keeps other servers out of it until the lock is released."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
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
