"""Rebuilds the state from the files of a state directory.

The state is that of the newest snapshot, changed by every group and event numbered after it; the bytes of
groups may be in any segment. The torn end of the last segment is truncated, and with it a post of which only
some groups were written: its client was not answered, and sends all of them again. Damage anywhere else, or a
missing group that is still needed, is an error: going on would lose data silently.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from hermes.core.json import JSONObject
from hermes.errors import StoreError
from hermes.rollouts.core import events
from hermes.rollouts.core.queue import QueuedGroup
from hermes.rollouts.core.snapshot import read_group, restore
from hermes.rollouts.core.state import ApiState
from hermes.rollouts.journal.segment import (
    MAGIC,
    LogSegment,
    RecordKind,
    RecordLocation,
    SegmentRecord,
    list_segments,
    scan,
)

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
