"""Which samples of a run are unfinished: a pure function of rows, samples per prompt and journal."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hermes.batch.journal import SampleEntry, SampleState
from hermes.batch.tasks import TaskRow


class SampleKey(NamedTuple):
    """Identity of one sample: the row's key and the sample's number."""

    key: str
    sample: int


@dataclass(frozen=True, slots=True)
class PlanProgress:
    """The state of a plan according to the journal."""

    finished: dict[SampleKey, SampleEntry]
    """Done and filtered: never run again."""
    failures: dict[SampleKey, list[SampleEntry]]
    """Failed attempts of samples that are not finished."""


def read_progress(entries: Iterable[SampleEntry]) -> PlanProgress:
    """The first terminal entry of a sample is used; failures before it are ignored."""
    finished: dict[SampleKey, SampleEntry] = {}
    failures: dict[SampleKey, list[SampleEntry]] = {}
    for entry in entries:
        key = SampleKey(entry.key, entry.sample)
        if entry.state is SampleState.FAILED:
            failures.setdefault(key, []).append(entry)
        else:
            finished.setdefault(key, entry)
    return PlanProgress(finished, {key: tries for key, tries in failures.items() if key not in finished})


def unfinished_samples(
    rows: Sequence[TaskRow], samples_per_prompt: int, progress: PlanProgress
) -> list[SampleKey]:
    """Every planned sample without a terminal entry, all first samples before all second ones."""
    return [key for key in planned_samples(rows, samples_per_prompt) if key not in progress.finished]


def planned_samples(rows: Sequence[TaskRow], samples_per_prompt: int) -> Iterator[SampleKey]:
    """All first samples before all second ones."""
    return (SampleKey(row.key, sample) for sample in range(samples_per_prompt) for row in rows)
