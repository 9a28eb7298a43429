"""The positions of a plan's samples in the journal: positions, not rows, so that any run fits in memory.

One pass over the segments finds the first terminal entry of every planned sample (as in plan.read_progress)
and its failures; rows are then read one at a time, in plan order. Terminal entries of samples that are no
longer planned are indexed too, because they were paid for. Only for a journal without a writer.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import BinaryIO, NamedTuple, Self

from hermes.batch.journal import SampleEntry, SampleState, read_segment
from hermes.batch.plan import SampleKey
from hermes.batch.tasks import TaskRow

_ABSENT = -1
_MAX_OPEN = 100


class EntryPosition(NamedTuple):
    """The start of one entry."""

    segment: int
    offset: int


@dataclass(slots=True)
class Failures:
    """The failed tries of one sample that is not finished."""

    tries: int = 0
    cause: str = ""
    """The cause of the last one."""
    trajectory_ids: list[str] = field(default_factory=list)
    """Oldest first; a try that failed before it began has none."""


class JournalIndex:
    """Open while rows are read: use it as a context manager."""

    def __init__(self, folder: Path, rows: tuple[TaskRow, ...], samples_per_prompt: int) -> None:
        self._rows = rows
        self._samples = samples_per_prompt
        self._number = {row.key: number for number, row in enumerate(rows)}
        planned = len(rows) * samples_per_prompt
        self._segment = array("i", [_ABSENT]) * planned
        self._offset = array("q", [_ABSENT]) * planned
        self._strays: dict[SampleKey, EntryPosition] = {}
        self._paths = sorted(folder.glob("*.jsonl"))
        self._open: dict[int, BinaryIO] = {}
        self.failures: dict[SampleKey, Failures] = {}
        """The failures of samples that are planned and not finished."""
        self.failed_tries = 0
        """The failed tries of all samples, including those that finished later."""

    def __enter__(self) -> Self:
        for segment in range(len(self._paths)):
            self._scan(segment)
        self.failures = {
            key: failures for key, failures in self.failures.items() if self._position(key) is None
        }
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self._open.values():
            file.close()

    def planned(self) -> Iterator[tuple[SampleKey, SampleEntry | None]]:
        """Every planned sample in plan order (row by row, all samples of one row together)."""
        for row in self._rows:
            for sample in range(self._samples):
                key = SampleKey(row.key, sample)
                position = self._position(key)
                yield key, None if position is None else self._read(position)

    def strays(self) -> Iterator[tuple[SampleKey, SampleEntry]]:
        """Finished samples that are not, or no longer, in the plan; sorted by key."""
        for key in sorted(self._strays):
            yield key, self._read(self._strays[key])

    def _scan(self, segment: int) -> None:
        for offset, entry in read_segment(self._paths[segment]):
            self._note(entry, EntryPosition(segment, offset))

    def _note(self, entry: SampleEntry, position: EntryPosition) -> None:
        key = SampleKey(entry.key, entry.sample)
        slot = self._slot(key)
        if entry.state is SampleState.FAILED:
            self.failed_tries += 1
            if slot is not None:
                self._note_failure(key, entry)
        elif slot is None:
            self._strays.setdefault(key, position)
        elif self._segment[slot] == _ABSENT:
            self._segment[slot], self._offset[slot] = position

    def _note_failure(self, key: SampleKey, entry: SampleEntry) -> None:
        failures = self.failures.setdefault(key, Failures())
        failures.tries += 1
        failures.cause = entry.reason or "unknown"
        if trajectory_id := entry.row.get("trajectory_id"):
            failures.trajectory_ids.append(trajectory_id)

    def _slot(self, key: SampleKey) -> int | None:
        number = self._number.get(key.key)
        if number is None or not 0 <= key.sample < self._samples:
            return None
        return number * self._samples + key.sample

    def _position(self, key: SampleKey) -> EntryPosition | None:
        slot = self._slot(key)
        if slot is None or self._segment[slot] == _ABSENT:
            return None
        return EntryPosition(self._segment[slot], self._offset[slot])

    def _read(self, position: EntryPosition) -> SampleEntry:
        file = self._open.get(position.segment) or self._reopen(position.segment)
        file.seek(position.offset)
        return SampleEntry.from_json(json.loads(file.readline()))

    def _reopen(self, segment: int) -> BinaryIO:
        """A run that was restarted often has more segments than a process may have open."""
        if len(self._open) >= _MAX_OPEN:
            self._open.pop(next(iter(self._open))).close()
        self._open[segment] = self._paths[segment].open("rb")
        return self._open[segment]
