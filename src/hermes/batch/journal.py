"""The journal of a run: one line per finished sample, on disk before the sample is reported as done.

Each worker appends to a segment of its own (`journal/<worker>.jsonl`), so workers do not wait for each other
and a killed worker can only have torn the last line of its own segment. Readers skip a torn line; everything
that was acknowledged is before it. A sample that two segments report (a worker was taken for dead, and was
not) counts once: the first report in segment order stands.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from hermes.core import JSONObject, appendlog
from hermes.errors import HostError
from hermes.store.group_commit import GroupCommit


class SampleState(StrEnum):
    DONE = "done"
    FILTERED = "filtered"
    """Ran to its end, but a quality switch keeps it out of the dataset. Terminal: never paid for twice."""
    FAILED = "failed"
    """An infrastructure failure: owed again on the next run."""


@dataclass(frozen=True, slots=True)
class SampleEntry:
    key: str
    sample: int
    state: SampleState
    row: JSONObject
    """The dataset row for done and filtered ones; for failed ones what is known of the failure."""
    reason: str | None = None
    """Why it was filtered or failed."""

    def to_json(self) -> JSONObject:
        return {
            "key": self.key,
            "sample": self.sample,
            "state": self.state.value,
            "reason": self.reason,
            "row": self.row,
        }

    @classmethod
    def from_json(cls, data: JSONObject) -> SampleEntry:
        return cls(data["key"], data["sample"], SampleState(data["state"]), data["row"], data.get("reason"))


class JournalSegment:
    """An append-only file with group commit; `append` resolves once the entry is flushed to disk."""

    def __init__(self, path: Path, redact: Callable[[str], str]) -> None:
        """`redact` is applied to each entry's JSON text before it is written."""
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._path = path
        self._redact = redact
        self._log = appendlog.AppendLog(path)
        self._group: GroupCommit[str] = GroupCommit("hermes-journal", self._flush)

    def append(self, entry: SampleEntry) -> Future[None]:
        return self._group.submit(self._redact(json.dumps(entry.to_json(), ensure_ascii=False)))

    def close(self) -> None:
        if self._group.close():
            self._log.close()

    def _flush(self, batch: list[tuple[str, Future[None]]]) -> None:
        try:
            self._log.append(line for line, _ in batch)
        except OSError as error:
            failure = HostError(
                f"cannot write the journal {self._path}: {error.strerror}",
                "free space on that disk, then run the same command again: it continues",
            )
            for _, future in batch:
                future.set_exception(failure)
            return
        for _, future in batch:
            future.set_result(None)


def read_states(folder: Path) -> Iterator[SampleEntry]:
    """The entries of `read_journal` without their rows, for readers that keep the state of every sample."""
    for entry in read_journal(folder):
        yield replace(entry, row={})


def read_journal(folder: Path) -> Iterator[SampleEntry]:
    """All entries of all segments, in segment order; torn last lines are skipped."""
    for path in sorted(folder.glob("*.jsonl")):
        for line in appendlog.read_lines(path):
            yield SampleEntry.from_json(json.loads(line))


def cut_torn_tails(folder: Path) -> int:
    """Removes half-written last lines for good; returns how many. Only while no worker runs."""
    return sum(appendlog.repair(path) for path in folder.glob("*.jsonl"))
