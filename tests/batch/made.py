"""Journals and rows made by hand, for tests about what becomes of them."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hermes.batch.journal import JournalSegment, SampleEntry, SampleState
from hermes.batch.output.finalise import DatasetSummary, finalise
from hermes.batch.spec import Filters, RunSpec
from hermes.batch.tasks import BadRow, Dataset, TaskRow
from hermes.core import JSONObject

START_MS = 1_700_000_000_000


def dataset(*keys: str, bad: Iterable[BadRow] = ()) -> Dataset:
    return Dataset(tuple(TaskRow(key, (f"prompt of {key}",)) for key in keys), tuple(bad), "digest-of-data")


def spec(**changes: Any) -> RunSpec:
    return RunSpec(
        **{"name": "run", "dataset": "tasks.jsonl", "dataset_digest": "d", "model": "test/model", **changes}
    )


def row(key: str, sample: int = 0, **changes: Any) -> JSONObject:
    """As the rollout describes a finished sample."""
    said = [
        {"from": "human", "value": f"prompt of {key}"},
        {"from": "gpt", "value": f"answer {sample} of {key}"},
    ]
    return {
        "id": f"id-{key}-{sample}",
        "conversations": said,
        "model": "test/model",
        "source": "batch",
        "completed": True,
        "outcome": {"stop_reason": "completed", "boundary": None, "error_type": None, "detail": None},
        "turns": 1,
        "tool_names": [],
        "tool_stats": {},
        "usage": usage(),
        "cost_usd": 0.5,
        "created_at_ms": START_MS,
        "run_id": "run",
        "task_id": key,
        "key": key,
        "sample": sample,
        "toolsets": [],
        "duration_s": 2.0,
        "latency_ms": [10.0],
        **changes,
    }


def usage(*counts: int) -> JSONObject:
    names = ("input_tokens", "cached_input_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
    return dict(zip(names, counts or (100, 0, 0, 10, 0), strict=True))


def done(key: str, sample: int = 0, **changes: Any) -> SampleEntry:
    return SampleEntry(key, sample, SampleState.DONE, row(key, sample, **changes))


def filtered(key: str, reason: str, sample: int = 0, **changes: Any) -> SampleEntry:
    return SampleEntry(key, sample, SampleState.FILTERED, row(key, sample, **changes), reason)


def failed(key: str, reason: str, sample: int = 0, trajectory_id: str | None = None) -> SampleEntry:
    known = {"trajectory_id": trajectory_id} if trajectory_id else {}
    return SampleEntry(key, sample, SampleState.FAILED, known, reason)


def write(folder: Path, *segments: Iterable[SampleEntry]) -> Path:
    """A run's folder with one journal segment for each sequence of entries."""
    for number, entries in enumerate(segments):
        segment = JournalSegment(folder / "journal" / f"{number:03}.jsonl", str)
        for entry in entries:
            segment.append(entry).result()
        segment.close()
    return folder


def finish(
    folder: Path, *segments: Iterable[SampleEntry], keys: Iterable[str] = "", **changes: Any
) -> DatasetSummary:
    """Writes the segments and finalises; `keys` are the dataset's rows, `filters` the switches."""
    if "filters" in changes:
        changes["filters"] = Filters(**changes["filters"])
    return finalise(write(folder, *segments), spec(**changes), dataset(*keys))


def lines(path: Path) -> list[JSONObject]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def contents(folder: Path) -> dict[str, bytes]:
    """Every file but the journal, by its path."""
    paths = [path for path in folder.rglob("*") if path.is_file() and "journal" not in path.parts]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
