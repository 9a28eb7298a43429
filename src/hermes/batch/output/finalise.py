"""From the journal to the files of a dataset.

    trajectories.jsonl  the rows                       statistics.json  figures over the whole run
    filtered.jsonl      rows kept aside, with why      README.md        dataset card
    failed.jsonl        samples still owed, with why   parquet/         the rows as Parquet
    bad_rows.jsonl      lines of the input that could not be used

Everything is in plan order (row by row, sample by sample) and takes its times from the data, so the same
journal gives the same bytes however the run went and as often as it is finalised. Each file is replaced
whole. Rows pass through one at a time: what is held is an index. Only while nobody writes the journal.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from hermes.batch.index import JournalIndex
from hermes.batch.journal import SampleState
from hermes.batch.output import card, parquet
from hermes.batch.output.rows import content_digest, shaped
from hermes.batch.output.statistics import DUPLICATE, StatisticsTally
from hermes.batch.plan import SampleKey
from hermes.batch.progress import cause_of
from hermes.batch.spec import RunSpec
from hermes.batch.tasks import Dataset
from hermes.core import JSONObject
from hermes.core.files import replacing
from hermes.data.export.table import is_available
from hermes.data.lines import encoded

_MARKER = "[REDACTED:"
_UNPLANNED = "no longer in the dataset"
_OUTPUTS = (
    "trajectories.jsonl",
    "filtered.jsonl",
    "failed.jsonl",
    "bad_rows.jsonl",
    "statistics.json",
    "README.md",
)


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    rows: int
    """In the dataset."""
    filtered: int
    failed: int
    """Samples that were tried, in vain so far."""
    not_run: int
    bad_rows: int
    statistics: JSONObject
    """As in statistics.json."""
    notes: tuple[str, ...] = ()
    """What the user should know: one line each."""


def finalise(folder: Path, spec: RunSpec, dataset: Dataset) -> DatasetSummary:
    """Writes all files of the run in `folder`, from its journal."""
    _sweep(folder)
    tally = StatisticsTally(spec, len(dataset.rows), len(dataset.bad))
    with_parquet = is_available()
    with JournalIndex(folder / "journal", dataset.rows, spec.samples_per_prompt) as index:
        tally.failed_tries = index.failed_tries
        with ExitStack() as stack:
            writer = _RowWriter(
                tally,
                stack.enter_context(replacing(folder / "trajectories.jsonl")),
                stack.enter_context(replacing(folder / "filtered.jsonl")),
                stack.enter_context(parquet.Shards(folder)) if with_parquet else None,
                dedupe=spec.filters.dedupe,
            )
            owed = _write_rows(index, writer)
        _write_lines(folder / "failed.jsonl", (_failure(key, index, tally) for key in owed))
    _write_lines(folder / "bad_rows.jsonl", ({"line": bad.line, "reason": bad.reason} for bad in dataset.bad))
    if not with_parquet:
        parquet.remove(folder)
    statistics = tally.result()
    with replacing(folder / "statistics.json") as file:
        file.write(json.dumps(statistics, indent=2, ensure_ascii=False) + "\n")
    with replacing(folder / "README.md") as file:
        file.write(card.render(spec, statistics, with_parquet=with_parquet))
    return _summary(tally, statistics, with_parquet)


class _RowWriter:
    """Sends each finished sample to the files it belongs in."""

    def __init__(
        self,
        tally: StatisticsTally,
        kept: TextIO,
        aside: TextIO,
        shards: parquet.Shards | None,
        *,
        dedupe: bool,
    ) -> None:
        self._tally = tally
        self._kept = kept
        self._aside = aside
        self._shards = shards
        self._dedupe = dedupe
        self._first: dict[str, SampleKey] = {}
        """Digest of a kept conversation → the sample that has it."""

    def add(self, key: SampleKey, raw: JSONObject, reason: str | None) -> None:
        """`reason`: why the row is kept aside; None if it belongs in the dataset."""
        row = shaped(raw)
        reason = reason or self._repeats(key, row)
        row, line = encoded(row if reason is None else {**row, "filtered": reason})
        self._tally.add_finished(row, reason)
        self._tally.redacted_rows += _MARKER in line
        (self._kept if reason is None else self._aside).write(line + "\n")
        if reason is None and self._shards is not None:
            self._shards.add(row, len(line))

    def _repeats(self, key: SampleKey, row: JSONObject) -> str | None:
        if not self._dedupe:
            return None
        first = self._first.setdefault(content_digest(row["conversations"]), key)
        return None if first == key else f"{DUPLICATE} of {first.key}/{first.sample}"


def _write_rows(index: JournalIndex, writer: _RowWriter) -> list[SampleKey]:
    """Returns the samples that have no row yet."""
    owed: list[SampleKey] = []
    for key, entry in index.planned():
        if entry is None:
            owed.append(key)
        else:
            writer.add(key, entry.row, entry.reason if entry.state is SampleState.FILTERED else None)
    for key, entry in index.strays():
        writer.add(key, entry.row, entry.reason if entry.state is SampleState.FILTERED else _UNPLANNED)
    return owed


def _failure(key: SampleKey, index: JournalIndex, tally: StatisticsTally) -> JSONObject:
    failed = index.failures.get(key)
    if failed is None:
        tally.not_run += 1
        return {"key": key.key, "sample": key.sample, "tries": 0, "cause": None, "trajectory_ids": []}
    tally.failed[cause_of(failed.cause)] += 1
    return {
        "key": key.key,
        "sample": key.sample,
        "tries": failed.tries,
        "cause": failed.cause,
        "trajectory_ids": sorted(failed.trajectory_ids),
    }


def _write_lines(path: Path, rows: Iterable[JSONObject]) -> None:
    with replacing(path) as file:
        for row in rows:
            file.write(encoded(row)[1] + "\n")


def _sweep(folder: Path) -> None:
    """Removes what a finalisation that was killed left half-written."""
    for path in folder.glob(".*"):
        if path.name.startswith(f".{parquet.FOLDER}."):
            shutil.rmtree(path, ignore_errors=True)
        elif any(path.name.startswith(f".{name}.") for name in _OUTPUTS):
            path.unlink(missing_ok=True)


def _summary(tally: StatisticsTally, statistics: JSONObject, with_parquet: bool) -> DatasetSummary:
    missing = "no Parquet: it needs pyarrow (pip install 'hermes-research[export]')"
    return DatasetSummary(
        rows=tally.done,
        filtered=tally.filtered.total(),
        failed=tally.failed.total(),
        not_run=tally.not_run,
        bad_rows=tally.bad_rows,
        statistics=statistics,
        notes=() if with_parquet else (missing,),
    )
