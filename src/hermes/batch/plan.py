"""Which samples are still owed. Pure: rows, samples a prompt, and the journal in; a list of work out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hermes.batch.journal import Entry, State
from hermes.batch.tasks import Row


class SampleKey(NamedTuple):
    """Identity of one piece of work: which row, and which of its samples."""

    key: str
    sample: int


@dataclass(frozen=True, slots=True)
class Progress:
    """What the journal says of a plan."""

    finished: dict[SampleKey, Entry]
    """Done and filtered: never run again."""
    failures: dict[SampleKey, list[Entry]]
    """Failed attempts of samples that are not finished."""


def read_progress(entries: Iterable[Entry]) -> Progress:
    """The first terminal entry of a sample stands; failures before it are history."""
    finished: dict[SampleKey, Entry] = {}
    failures: dict[SampleKey, list[Entry]] = {}
    for entry in entries:
        key = SampleKey(entry.key, entry.sample)
        if entry.state is State.FAILED:
            failures.setdefault(key, []).append(entry)
        else:
            finished.setdefault(key, entry)
    return Progress(finished, {key: tries for key, tries in failures.items() if key not in finished})


def owed(rows: Sequence[Row], samples_per_prompt: int, progress: Progress) -> list[SampleKey]:
    """Every planned sample without a terminal entry, all first samples before all second ones."""
    return [
        key
        for sample in range(samples_per_prompt)
        for row in rows
        if (key := SampleKey(row.key, sample)) not in progress.finished
    ]
