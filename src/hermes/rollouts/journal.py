"""Where changes are made to last, and where the bytes of groups are kept.

`append` resolves once the change is as safe as the journal can make it, and applies it then, in the order of
the log. `FileJournal` writes to a state directory: what it acknowledged survives kill -9 and power loss, the
bytes of groups stay on disk until they are served. `MemoryJournal` keeps them in memory and nothing else.

Old segments are deleted once none of their groups is needed. One that is mostly dead is emptied first, by
copying what lives to the newest, so the disk holds little more than what is queued.
"""

from __future__ import annotations

import asyncio
import fcntl
import functools
import json
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol, TypeVar

from hermes.core.json import JSONObject
from hermes.errors import StoreError
from hermes.rollouts.log import Draft, Log, Operation
from hermes.rollouts.queue import Group
from hermes.rollouts.recover import recover
from hermes.rollouts.segment import Kind, Place, framed_group
from hermes.rollouts.snapshot import describe, describe_group
from hermes.rollouts.state import State

SEGMENT_BYTES = 64 << 20

T = TypeVar("T")
NewGroup = tuple[Group, bytes]


class Journal(Protocol):
    state: State
    """The state it starts with; every change to it goes through `append`."""
    last_group_id: int

    def append(
        self, apply: Callable[[], T], event: JSONObject | None = None, groups: Sequence[NewGroup] = ()
    ) -> asyncio.Future[T]:
        """Records groups and an event as one, then calls `apply`. StoreError: nothing was recorded."""
        ...

    def reader(self, group_ids: Iterable[int]) -> list[Callable[[], bytes]]:
        """For each group a function that gets its bytes; call it in a thread. Good until `forget`."""
        ...

    def forget(self, groups: Iterable[Group]) -> None:
        """The bytes of these groups are not needed any more."""
        ...

    def figures(self) -> dict[str, float]:
        """Counters for the metrics page."""
        ...

    async def close(self) -> None: ...


class MemoryJournal:
    def __init__(self) -> None:
        self.state = State()
        self.last_group_id = 0
        self._bodies: dict[int, bytes] = {}

    def append(
        self, apply: Callable[[], T], event: JSONObject | None = None, groups: Sequence[NewGroup] = ()
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        for group, body in groups:
            self._bodies[group.id] = body
        future.set_result(apply())
        return future

    def reader(self, group_ids: Iterable[int]) -> list[Callable[[], bytes]]:
        bodies = [self._bodies[group_id] for group_id in group_ids]
        return [functools.partial(bytes, body) for body in bodies]

    def forget(self, groups: Iterable[Group]) -> None:
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
        self._lock = _locked(directory)
        try:
            recovered = recover(directory, now_s)
            self._log = Log(directory, recovered.last_index + 1)
        except BaseException as error:
            os.close(self._lock)
            if isinstance(error, OSError):
                raise StoreError(
                    f"cannot use {directory}: {error}", "free the disk or mend the files"
                ) from error
            raise
        self.state = recovered.state
        self.last_group_id = recovered.last_group_id
        self._number = self._applied = recovered.last_number
        self._covered = 0
        """The newest durable snapshot says everything up to this number."""
        self._places = recovered.places
        self._old = recovered.segments
        for group_id, place in self._places.items():
            place.segment.live[group_id] = place.end - place.body
        self._snapshot_under_way = False
        self._write_snapshot(rotate=False)

    def append(
        self, apply: Callable[[], T], event: JSONObject | None = None, groups: Sequence[NewGroup] = ()
    ) -> asyncio.Future[T]:
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        drafts = [
            self._draft(Kind.GROUP, framed_group(describe_group(group), body), group.id)
            for group, body in groups
        ]
        if event is not None:
            drafts.append(self._draft(Kind.EVENT, (json.dumps(event).encode(),)))

        def done(outcome: list[Place] | StoreError) -> None:
            if isinstance(outcome, StoreError):
                future.set_exception(outcome)
                return
            for (group, _), place in zip(groups, outcome, strict=True):
                self._settle(group.id, place)
            self._applied = drafts[-1].number
            future.set_result(apply())
            if self._log.current.size > self._segment_bytes:
                self._write_snapshot(rotate=True)

        self._log.put(Operation(tuple(drafts), done))
        return future

    def reader(self, group_ids: Iterable[int]) -> list[Callable[[], bytes]]:
        return [self._places[group_id].read for group_id in group_ids]

    def forget(self, groups: Iterable[Group]) -> None:
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
        os.close(self._lock)

    def _draft(
        self,
        kind: Kind,
        parts: tuple[bytes, ...] = (),
        group_id: int | None = None,
        source: Place | None = None,
    ) -> Draft:
        self._number += 1
        return Draft(self._number, kind, parts, group_id, source)

    def _settle(self, group_id: int, place: Place) -> None:
        self._places[group_id] = place
        place.segment.live[group_id] = place.end - place.body

    def _write_snapshot(self, *, rotate: bool) -> None:
        """Says the whole state once more, in a new segment if so wanted; then old ones can go."""
        if self._snapshot_under_way:
            return
        self._snapshot_under_way = True
        through = self._applied
        former = self._log.current

        def done(outcome: list[Place] | StoreError) -> None:
            self._snapshot_under_way = False
            if isinstance(outcome, StoreError):
                return  # a later append tries again
            self._applied = draft.number
            self._covered = through
            if self._log.current is not former:
                self._old.append(former)
            self._clean_up()

        text = json.dumps({**describe(self.state), "through": through}).encode()
        draft = self._draft(Kind.SNAPSHOT, (text,))
        self._log.put(Operation((draft,), done, rotate=rotate))

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

    def _copy(self, group_id: int, source: Place) -> None:
        draft = self._draft(Kind.COPY, (), group_id, source)

        def done(outcome: list[Place] | StoreError) -> None:
            if isinstance(outcome, StoreError):
                source.segment.emptying = False
                return
            self._applied = draft.number
            if self._places.get(group_id) is source:  # it was not served meanwhile
                del source.segment.live[group_id]
                self._settle(group_id, outcome[0])
                if not source.segment.live:
                    self._clean_up()

        self._log.put(Operation((draft,), done))


def _locked(directory: Path) -> int:
    """Makes the directory if need be and keeps other servers out of it as long as the handle is open."""
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        lock = os.open(directory / "lock", os.O_RDWR | os.O_CREAT, 0o600)
    except OSError as error:
        raise StoreError(
            f"cannot use {directory} as state directory: {error.strerror}", "choose another --state-dir"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(lock)
        raise StoreError(
            f"another server uses the state directory {directory}", "stop it, or choose another --state-dir"
        ) from error
    return lock
