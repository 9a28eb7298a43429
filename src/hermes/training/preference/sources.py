"""Where preference data comes from: files, or the verdicts in the store; and which adapter answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.data.preference.pairs import PreferencePair, PreferenceSource
from hermes.errors import HermesError, UsageError
from hermes.training.preference.examples import RatedCompletion
from hermes.training.preference.files import read_preference_files
from hermes.training.preference.reference import BASE

if TYPE_CHECKING:
    from hermes.data.export.select import TrajectorySelection
    from hermes.store import Reader

DEFAULT_ORIGINS = ("choice", "rating", "retry")
"""Rewards are left out: they are a program's verdicts, and have to be asked for."""


@dataclass(frozen=True)
class PreferenceData:
    pairs: Sequence[PreferencePair] = ()
    rated: Sequence[RatedCompletion] = ()
    left_out: Counter[str] = field(default_factory=Counter)
    policies: frozenset[str] = frozenset()
    """tinker:// paths of the weights that gave the answers, where they are known."""


def from_files(paths: Sequence[Path]) -> PreferenceData:
    rows = read_preference_files(paths)
    return PreferenceData(tuple(rows.pairs), tuple(rows.rated))


def from_store(
    reader: Reader, selection: TrajectorySelection, origins: Sequence[str], min_margin: float
) -> PreferenceData:
    from hermes.data.preference.rows import read_rows

    rows = read_rows(
        reader,
        selection,
        origins=tuple(PreferenceSource(origin) for origin in origins),
        min_margin=min_margin,
    )
    rated = tuple(
        RatedCompletion(span.prompt, span.completion, span.score, span.desirable, span.task, span.tools)
        for span in rows.spans
    )
    ids = {pair.chosen_id for pair in rows.pairs} | {pair.rejected_id for pair in rows.pairs}
    ids |= {span.trajectory_id for span in rows.spans}
    policies = frozenset(path for trajectory_id in ids for path in _policies(reader, trajectory_id))
    return PreferenceData(rows.pairs, rated, rows.left_out, policies)


def answers_reference(data: PreferenceData) -> str:
    """The weights that gave all the answers; BASE if no adapter did. UsageError if there are several."""
    if len(data.policies) > 1:
        names = ", ".join(sorted(data.policies)[:3])
        raise UsageError(
            f"the answers came from {len(data.policies)} adapters: {names}",
            "name one with --reference, or select the answers of one with --model or --since",
        )
    return next(iter(data.policies), BASE)


def _policies(reader: Reader, trajectory_id: str) -> Iterator[str]:
    try:
        trajectory = reader.get(trajectory_id)
    except HermesError:
        return  # deleted since; its rows have been read already
    for step in trajectory.steps:
        trace = step.call.tokens if step.call else None
        version = trace.policy_version if trace else None
        if version is not None and version.startswith("tinker://"):
            yield version
