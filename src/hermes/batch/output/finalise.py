"""From the journal to the files of a dataset.

    trajectories.jsonl  the rows                       statistics.json  figures over the whole run
    filtered.jsonl      filtered rows, with reasons    README.md        dataset card
    failed.jsonl        samples still owed, and why    parquet/         the rows as Parquet
    bad_rows.jsonl      lines of the input that could not be used

Everything is in plan order (row by row, sample by sample) and takes its times from the data, so the same
journal gives the same bytes however the run went and as often as it is finalised. Each file is replaced
whole. Rows are read one at a time: only an index is held in memory. No process may write to the journal
meanwhile.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from hermes.batch.index import JournalIndex
from hermes.batch.journal import SampleState
from hermes.batch.output import card
from hermes.batch.output.statistics import DUPLICATE, StatisticsTally
from hermes.batch.plan import SampleKey
from hermes.batch.progress import cause_of
from hermes.batch.spec import RunSpec, hold_run
from hermes.batch.tasks import Dataset
from hermes.core import JSONObject
from hermes.data.export.sink import RowSink, encode, open_shards, open_sink
from hermes.data.export.table import is_available
from hermes.data.formats.batch import FORMAT, content_digest, dataset_row
from hermes.data.lines import encode_row
from hermes.disk.drafts import sweep
from hermes.disk.files import replacing
from hermes.safety.redact import MARKER

_UNPLANNED = "no longer in the dataset"
_OUTPUTS = (
    "trajectories.jsonl",
    "filtered.jsonl",
    "failed.jsonl",
    "bad_rows.jsonl",
    "statistics.json",
    "README.md",
    card.PARQUET_FOLDER,
)


def delete_run(folder: Path) -> list[str]:
    """Deletes the run in `folder`: its journal and the files made from it.

    Returns the names that are left: files of somebody else, which keep the folder. UsageError if a process
    carries out the run.
    """
    with hold_run(folder):
        for name in (*_OUTPUTS, "journal", "run.json"):  # the last one is what the command finds a run by
            sweep(folder / name)
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    left = sorted(path.name for path in folder.iterdir())
    if not left:
        folder.rmdir()
    return left


@dataclass(frozen=True, slots=True)
class DatasetSummary:
    rows: int
    """In the dataset."""
    filtered: int
    failed: int
    """Samples whose tries have all failed so far."""
    not_run: int
    bad_rows: int
    statistics: JSONObject
    """As in statistics.json."""
    notes: tuple[str, ...] = ()
    """Lines for the user."""


def finalise(folder: Path, spec: RunSpec, dataset: Dataset) -> DatasetSummary:
    """Writes all files of the run in `folder`, from its journal."""
    for name in _OUTPUTS:
        sweep(folder / name)
    tally = StatisticsTally(spec, len(dataset.rows), len(dataset.bad))
    with_parquet = is_available()
    with JournalIndex(folder / "journal", dataset.rows, spec.samples_per_prompt) as index:
        tally.failed_tries = index.failed_tries
        with ExitStack() as stack:
            dataset_sinks = [stack.enter_context(open_sink(folder / "trajectories.jsonl", FORMAT))]
            if with_parquet:
                dataset_sinks.append(stack.enter_context(open_shards(folder / card.PARQUET_FOLDER, FORMAT)))
            filtered_sink = stack.enter_context(open_sink(folder / "filtered.jsonl", FORMAT))
            writer = _RowWriter(tally, dataset_sinks, filtered_sink, dedupe=spec.filters.dedupe)
            owed = _write_rows(index, writer)
        _write_lines(folder / "failed.jsonl", (_failure(key, index, tally) for key in owed))
    _write_lines(folder / "bad_rows.jsonl", (bad.to_json() for bad in dataset.bad))
    if not with_parquet:
        shutil.rmtree(folder / card.PARQUET_FOLDER, ignore_errors=True)
    statistics = tally.result()
    with replacing(folder / "statistics.json") as file:
        file.write(json.dumps(statistics, indent=2, ensure_ascii=False) + "\n")
    with replacing(folder / "README.md") as file:
        file.write(card.render(spec, statistics, with_parquet=with_parquet))
    return _summary(spec.name, tally, statistics, with_parquet)


class _RowWriter:
    """Writes each finished sample to the dataset or to the filtered rows."""

    def __init__(
        self, tally: StatisticsTally, dataset: Sequence[RowSink], filtered: RowSink, *, dedupe: bool
    ) -> None:
        self._tally = tally
        self._dataset = dataset
        self._filtered = filtered
        self._dedupe = dedupe
        self._first: dict[str, SampleKey] = {}
        """Digest of a conversation in the dataset → the sample that has it."""

    def add(self, key: SampleKey, sample: JSONObject, reason: str | None) -> None:
        """`reason`: why the row is filtered; None if it belongs in the dataset."""
        row = dataset_row(sample)
        reason = reason or self._duplicate(key, row)
        encoded = encode(row if reason is None else {**row, "filtered": reason}, FORMAT)
        self._tally.add_finished(encoded.row, reason)
        self._tally.redacted_rows += MARKER in encoded.line
        for sink in self._dataset if reason is None else (self._filtered,):
            sink.add(encoded)

    def _duplicate(self, key: SampleKey, row: JSONObject) -> str | None:
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
            file.write(encode_row(row).line + "\n")


def _summary(run: str, tally: StatisticsTally, statistics: JSONObject, with_parquet: bool) -> DatasetSummary:
    notes = [] if with_parquet else ["no Parquet: it needs pyarrow (pip install 'hermes-research[export]')"]
    if tally.rows_of_hidden_thinking:
        notes.append(
            f"rows with thinking that a later call was not shown: {tally.rows_of_hidden_thinking};"
            f" to train on what was shown: hermes export --run {run} --output FILE"
        )
    return DatasetSummary(
        rows=tally.done,
        filtered=tally.filtered.total(),
        failed=tally.failed.total(),
        not_run=tally.not_run,
        bad_rows=tally.bad_rows,
        statistics=statistics,
        notes=tuple(notes),
    )
