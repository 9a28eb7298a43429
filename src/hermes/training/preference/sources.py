"""Where preference data comes from: files, or the verdicts in the store; and which adapter answered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.data.preference.pairs import PreferencePair, PreferenceSource
from hermes.errors import HermesError, UsageError
from hermes.training.policy_registry import is_policy_name, named_policy
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
    """What gave the answers, where it is known: tinker:// paths of weights, names of policies."""


def from_files(paths: Sequence[Path]) -> PreferenceData:
    rows = read_preference_files(paths)
    return PreferenceData(tuple(rows.pairs), tuple(rows.rated))


def from_store(
    reader: Reader, selection: TrajectorySelection, origins: Sequence[str], min_margin: float
) -> PreferenceData:
    from hermes.data.export.split import store_groups
    from hermes.data.preference.rows import read_rows

    rows = read_rows(
        reader,
        selection,
        origins=tuple(PreferenceSource(origin) for origin in origins),
        min_margin=min_margin,
        groups=store_groups(reader),
    )
    rated = tuple(
        RatedCompletion(span.prompt, span.completion, span.score, span.desirable, span.task, span.tools)
        for span in rows.spans
    )
    ids = {pair.chosen_id for pair in rows.pairs} | {pair.rejected_id for pair in rows.pairs}
    ids |= {span.trajectory_id for span in rows.spans}
    policies = frozenset(path for trajectory_id in ids for path in _policies(reader, trajectory_id))
    return PreferenceData(rows.pairs, rated, rows.left_out, policies)


def answers_reference(data: PreferenceData, home: Path) -> str:
    """The weights that gave all the answers; BASE if no adapter did. UsageError if there are several.

    `home`: of the policies, whose answers in chat are recorded with the policy's name.
    """
    adapters = {path for name in data.policies if (path := _sampler(name, home)) is not None}
    if len(adapters) > 1:
        names = ", ".join(sorted(adapters)[:3])
        raise UsageError(
            f"the answers came from {len(adapters)} adapters: {names}",
            "name one with --reference, or select the answers of one with --model or --since",
        )
    return next(iter(adapters), BASE)


def _sampler(name: str, home: Path) -> str | None:
    """None: the base model itself."""
    policy = named_policy(home, name)
    return name if policy is None else policy.sampler


def _policies(reader: Reader, trajectory_id: str) -> Iterator[str]:
    try:
        trajectory = reader.get(trajectory_id)
    except HermesError:
        return  # deleted since; its rows have been read already
    if is_policy_name(trajectory.header.model):
        yield trajectory.header.model
    for step in trajectory.steps:
        trace = step.call.tokens if step.call else None
        version = trace.policy_version if trace else None
        if version is not None and version.startswith("tinker://"):
            yield version
