"""The journal of a run: one line per finished sample, on disk before the sample is reported as finished.

Each worker appends to its own segment (`journal/<worker>.jsonl`), so there is no lock, and a killed worker
can only have torn the last line of its own segment. Readers ignore a torn last line; acknowledged entries are
before it. They also ignore a line that is no entry (the disk, or another program, damaged the file): its
sample then has no entry and runs again. A sample in two segments (a worker was wrongly considered dead)
counts once: the first entry in segment order is used.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Set
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path

from hermes.core import JSON, JSONObject, Usage, parse_object
from hermes.data import typed
from hermes.data.export.table import KINDS, fits
from hermes.data.formats.batch import COLUMNS, EXTRA
from hermes.disk import appendlog
from hermes.errors import HostError
from hermes.store.group_commit import GroupCommit

_logger = logging.getLogger(__name__)


class SampleState(StrEnum):
    DONE = "done"
    FILTERED = "filtered"
    """Finished, but a quality filter removed it from the dataset. Terminal: it is not run again."""
    FAILED = "failed"
    """An infrastructure failure: run again on the next start."""


@dataclass(frozen=True, slots=True)
class SampleEntry:
    key: str
    sample: int
    state: SampleState
    row: JSONObject
    """The dataset row of a done or filtered sample; of a failed one, details of the failure."""
    reason: str | None = None
    """Why it was filtered or failed."""
    effort: JSONObject = field(default_factory=dict)
    """Set if the sample was continued: see batch.attempt.effort."""

    @property
    def paid_usd(self) -> float | None:
        """The cost of the sample that no other entry has; None if a price is unknown."""
        cost_usd: float | None = self.effort.get("paid_usd", self.row.get("cost_usd"))
        return cost_usd

    def to_json(self) -> JSONObject:
        return {
            "key": self.key,
            "sample": self.sample,
            "state": self.state.value,
            "reason": self.reason,
            **({"effort": self.effort} if self.effort else {}),
            "row": self.row,
        }

    @classmethod
    def from_json(cls, data: JSONObject) -> SampleEntry:
        """ValueError, TypeError or KeyError if `data` is no entry, or its row no row of a dataset."""
        entry = cls(
            data["key"],
            data["sample"],
            SampleState(data["state"]),
            data["row"],
            data.get("reason"),
            data.get("effort", {}),
        )
        if problem := typed.problem(entry, SampleEntry, "entry"):
            raise ValueError(problem)
        if not fits(entry.effort, _EFFORT):
            raise ValueError("its effort has other types")
        _check_row(entry)
        return entry


_EFFORT = {"replayed_calls": "int64", "repeated_calls": "int64", "paid_usd": "double"}
_FAILED_ROW = {"trajectory_id": "string", "cost_usd": "double"}
_OPEN_KEYS = ("tool_stats", "unknown_tools", "metadata", EXTRA)
_ROW = {column.name: KINDS[column.kind] for column in COLUMNS if column.name not in _OPEN_KEYS}
_TOKENS = {*Usage.__slots__}
_CALLS = {"count", "success", "failure"}
_MOST = 1e12
_NEVER_NULL = (
    "id",
    "conversations",
    "outcome",
    "turns",
    "tool_names",
    "tool_stats",
    "usage",
    "created_at_ms",
)


def _check_row(entry: SampleEntry) -> None:
    """ValueError if the row lacks what a dataset and its statistics are made of."""
    row = entry.row
    if entry.state is SampleState.FAILED:
        if not fits(row, _FAILED_ROW):
            raise ValueError("the row of a failed sample has other types")
        return
    missing = [name for name in _NEVER_NULL if row.get(name) is None]
    wrong = [name for name, kind in _ROW.items() if not fits(row.get(name), kind)]
    wrong += [name for name in ("tool_stats", "metadata") if not isinstance(row.get(name), dict | None)]
    if missing or wrong:
        raise ValueError(f"missing or of another type: {', '.join((*missing, *wrong))}")
    texts = [turn.get(name) for turn in row["conversations"] for name in ("from", "value")]
    counted = _are_counts(row["usage"], _TOKENS) and all(
        _are_counts(calls, _CALLS) and {*calls} == _CALLS for calls in row["tool_stats"].values()
    )
    if any((row.get(name) or 0.0) > _MOST for name in ("cost_usd", "duration_s")):
        raise ValueError("its cost or duration is beyond any run's")
    if not counted or None in (row["outcome"].get("stop_reason"), *texts):
        raise ValueError("a count, a turn or the stop reason is missing")


def _are_counts(value: JSON, names: Set[str]) -> bool:
    return isinstance(value, dict) and {*value} <= names and fits([*value.values()], ["int64"])


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
    """Like `read_journal`, without the rows: the state of each sample, in little memory."""
    for entry in read_journal(folder):
        yield replace(entry, row={})


def read_journal(folder: Path) -> Iterator[SampleEntry]:
    """Every entry of every segment, in segment order; torn last lines are ignored."""
    for path in sorted(folder.glob("*.jsonl")):
        for _, entry in read_segment(path):
            yield entry


def read_segment(path: Path) -> Iterator[tuple[int, SampleEntry]]:
    """The entries of one segment, each with the offset of its line."""
    for offset, line in appendlog.read_lines_at(path):
        try:
            entry = SampleEntry.from_json(parse_object(line))
        except (ValueError, KeyError, TypeError):
            _logger.warning("%s: the line at byte %d is damaged and is ignored", path, offset)
            continue
        yield offset, entry


def cut_torn_tails(folder: Path) -> int:
    """Removes half-written last lines for good; returns how many. Only while no worker runs."""
    return sum(appendlog.repair(path) for path in folder.glob("*.jsonl"))
