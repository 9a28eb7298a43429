"""Parts of groups that an environment sends in pieces, held until some of them make a whole one. Pure.

An environment registered with group size 8 may send 3 and 5: neither alone is a group. After each part the
oldest parts that add up to exactly the group size leave together; where taking the oldest first does not
come out even, any exact sum does, the newest parts first.
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
        """Bit s of `_sums[i]`: some of the first i parts add up to s. Kept so that a part costs one shift."""
        for part in parts:
            self._append(part)

    @property
    def sequences(self) -> int:
        return sum(part.size for part in self.parts)

    def completes(self, size: int) -> bool:
        """Whether a part of this size would make a whole group."""
        return bool(self._with(size) >> self.target & 1)

    def add(self, part: QueuedGroup) -> list[QueuedGroup]:
        """Takes a part of fewer sequences than the target; returns those that now leave, oldest first."""
        self._append(part)
        if not self._sums[-1] >> self.target & 1:
            return []
        leaving = set(self._oldest_first() or self._newest_first())
        gone = [part for index, part in enumerate(self.parts) if index in leaving]
        staying = [part for index, part in enumerate(self.parts) if index not in leaving]
        self.parts, self._sums = [], [1]
        for part in staying:
            self._append(part)
        return gone

    def _append(self, part: QueuedGroup) -> None:
        self._sums.append(self._with(part.size))
        self.parts.append(part)

    def _with(self, size: int) -> int:
        sums = self._sums[-1]
        return (sums | sums << size) & ((1 << self.target + 1) - 1)

    def _oldest_first(self) -> list[int]:
        taken: list[int] = []
        total = 0
        for index, part in enumerate(self.parts):
            if total + part.size <= self.target:
                taken.append(index)
                total += part.size
            if total == self.target:
                return taken
        return []

    def _newest_first(self) -> list[int]:
        taken: list[int] = []
        missing = self.target
        for index in range(len(self.parts) - 1, -1, -1):
            size = self.parts[index].size
            if size <= missing and self._sums[index] >> missing - size & 1:
                taken.append(index)
                missing -= size
        return taken
