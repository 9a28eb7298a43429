"""Buffers the parts of groups that an environment sends in pieces, until some make a whole group. Pure.

An environment registered with group size 8 may send 3 and 5: neither is a group by itself. After each part,
the oldest parts that add up to exactly the group size leave the buffer together; if the oldest parts do not
add up, any exact sum is used, the newest parts first.
"""

from __future__ import annotations

from collections.abc import Iterable

from hermes.rollouts.core.queue import QueuedGroup


class Buffer:
    """The parts of one environment. No subset of them adds up to `target`."""

    def __init__(self, target: int, parts: Iterable[QueuedGroup] = ()) -> None:
        self.target = target
        self.parts: list[QueuedGroup] = []
        self._sums = [1]
        """Bit s of `_sums[i]`: some of the first i parts add up to s. Adding a part costs one shift."""
        for part in parts:
            self._append(part)

    @property
    def sequences(self) -> int:
        return sum(part.size for part in self.parts)

    def completes(self, size: int) -> bool:
        """Whether a part of this size would make a whole group."""
        return bool(self._sums_with(size) >> self.target & 1)

    def add(self, part: QueuedGroup) -> list[QueuedGroup]:
        """Adds a part smaller than the target; returns the parts of a group it completes, oldest first."""
        self._append(part)
        if not self._sums[-1] >> self.target & 1:
            return []
        leaving = set(self._oldest_first() or self._newest_first())
        complete = [part for index, part in enumerate(self.parts) if index in leaving]
        staying = [part for index, part in enumerate(self.parts) if index not in leaving]
        self.parts, self._sums = [], [1]
        for part in staying:
            self._append(part)
        return complete

    def _append(self, part: QueuedGroup) -> None:
        self._sums.append(self._sums_with(part.size))
        self.parts.append(part)

    def _sums_with(self, size: int) -> int:
        sums = self._sums[-1]
        return (sums | sums << size) & ((1 << self.target + 1) - 1)

    def _oldest_first(self) -> list[int]:
        indices: list[int] = []
        total = 0
        for index, part in enumerate(self.parts):
            if total + part.size <= self.target:
                indices.append(index)
                total += part.size
            if total == self.target:
                return indices
        return []

    def _newest_first(self) -> list[int]:
        indices: list[int] = []
        missing = self.target
        for index in range(len(self.parts) - 1, -1, -1):
            size = self.parts[index].size
            if size <= missing and self._sums[index] >> missing - size & 1:
                indices.append(index)
                missing -= size
        return indices
