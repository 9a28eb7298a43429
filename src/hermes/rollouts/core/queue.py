"""The groups that wait for a batch, first in, first out. Pure: no clock, no disk, no HTTP.

The queue is a set of lanes, one for each pair of environment and group size, each in order of arrival.
Packing only ever takes from the front of lanes, so forming a batch costs in proportion to the batch
and the number of lanes, never to the length of the queue.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias


@dataclass(frozen=True, slots=True)
class QueuedGroup:
    """The metadata of one group of scored sequences; the journal stores its bytes under its id."""

    id: int
    env_id: int | None
    size: int
    """Sequences in it."""
    bytes: int
    received_s: float


class QueueEntry(NamedTuple):
    """A group and its position in the order of arrival."""

    order: int
    group: QueuedGroup


Lane: TypeAlias = deque[QueueEntry]
LaneKey: TypeAlias = tuple[int | None, int]
"""Environment id (None: posted without one) and group size."""


class Queue:
    def __init__(self, groups: Iterable[QueuedGroup] = ()) -> None:
        self._lanes: dict[LaneKey, Lane] = {}
        self._sizes: Counter[int] = Counter()
        self._ids: set[int] = set()
        self._next_order = 0
        self.version = 0
        """Grows with every change."""
        self.groups = 0
        self.sequences = 0
        self.bytes = 0
        for group in groups:
            self.push(group)

    @property
    def lanes(self) -> Mapping[LaneKey, Lane]:
        """No lane is empty."""
        return self._lanes

    @property
    def sizes(self) -> Collection[int]:
        """The sizes of the queued groups."""
        return self._sizes.keys()

    def __contains__(self, group_id: int) -> bool:
        return group_id in self._ids

    def push(self, group: QueuedGroup) -> None:
        lane = self._lanes.setdefault((group.env_id, group.size), deque())
        lane.append(QueueEntry(self._next_order, group))
        self._next_order += 1
        self._ids.add(group.id)
        self._count(group, 1)

    def remove(self, groups: Iterable[QueuedGroup]) -> None:
        """Removes groups, which must be queued; cheap for those at the front of their lanes."""
        for group in groups:
            lane = self._lanes[group.env_id, group.size]
            index = 0 if lane[0].group.id == group.id else [entry.group.id for entry in lane].index(group.id)
            del lane[index]
            if not lane:
                del self._lanes[group.env_id, group.size]
            self._ids.remove(group.id)
            self._count(group, -1)

    def __iter__(self) -> Iterator[QueuedGroup]:
        return (entry.group for entry in heapq.merge(*self._lanes.values()))

    def oldest(self) -> QueuedGroup | None:
        heads = [lane[0] for lane in self._lanes.values()]
        return min(heads).group if heads else None

    def _count(self, group: QueuedGroup, sign: int) -> None:
        self.version += 1
        self.groups += sign
        self._sizes[group.size] += sign
        if not self._sizes[group.size]:
            del self._sizes[group.size]
        self.sequences += sign * group.size
        self.bytes += sign * group.bytes
