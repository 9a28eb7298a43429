"""Which trajectories an export takes, and in which version: selection, curation, and why others stay out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hermes.core import RaterSource, Rating, Relation, Role, Step, StepKind, StopReason, Trajectory
from hermes.core.model_call import INTERRUPTED
from hermes.data.curate.base import Curation, Removal, Rule
from hermes.data.example import Example, load, unseen_thinking
from hermes.data.where import Condition
from hermes.store import Filter, Reader
from hermes.store.query import ALL

_PAGE = 500


@dataclass(frozen=True)
class TrajectorySelection:
    """Selects what to export; every condition must hold."""

    filters: Filter = ALL
    where: Sequence[Condition] = ()
    rules: Sequence[Rule] = ()
    only_completed: bool = True
    compressed: bool = False
    """Take a trajectory's newest compressed version where it has one."""
    machine_ratings: bool = False
    """Count ratings of machines although people rated some of these trajectories."""


EVERYTHING = TrajectorySelection()


@dataclass
class LeftOut:
    """Trajectories that matched the filter and were not taken."""

    reasons: Counter[str] = field(default_factory=Counter)
    removals: list[Removal] = field(default_factory=list)

    def add(self, trajectory_id: str, rule: str, detail: str, reason: str | None = None) -> None:
        self.reasons[reason or detail] += 1
        self.removals.append(Removal(trajectory_id, rule, detail))


def select(
    reader: Reader, selection: TrajectorySelection, left_out: LeftOut, *, whole: bool = False
) -> Iterator[Example]:
    """Oldest first, one in memory at a time; a sample of a batch run once, however often it was interrupted.

    `whole`: records as they are, all attempts at a sample, compressed ones beside their originals, and also
    those in which the model never answered."""
    versions = compressed_versions(reader) if selection.compressed else {}
    curation = Curation(selection.rules)
    excluded = _excluded(reader, selection, versions)
    if not whole:
        reason = Exclusion("sample", "another attempt at the same sample of a batch run")
        excluded |= dict.fromkeys(reader.surplus_attempts(), reason)
    people_only = not whole and not selection.machine_ratings and _people_rated(reader, selection.filters)
    for trajectory_id in reader.matching_ids(selection.filters):
        if trajectory_id in excluded:
            left_out.add(trajectory_id, *excluded[trajectory_id])
            continue
        trajectory = reader.get(trajectory_id)
        if trajectory.header.relation is Relation.COMPRESSED and not whole:
            if not selection.compressed:
                left_out.add(trajectory.header.id, "version", "a compressed version; --compressed takes it")
            continue
        example = load(reader, trajectory)
        if people_only and (example := _of_people(example)).ratings == () and selection.filters.bounds_rating:
            left_out.add(example.id, "rating", "rated by machines only; --machine-ratings takes it")
            continue
        version = versions.get(example.id)
        if whole:
            example = replace(example, record=reader.record(trajectory))
        elif version is not None:
            trajectory = reader.get(version)
            example = in_version(example, trajectory)
            example = replace(example, unseen=unseen_thinking(reader, trajectory))
        if versions and not whole:
            example = replace(
                example, ratings=tuple(_renamed(rating, versions) for rating in example.ratings)
            )
        unfit_reason = unfit(example, only_completed=selection.only_completed, unanswered=whole)
        failed = next((condition.text for condition in selection.where if not condition.holds(example)), None)
        if unfit_reason is not None:
            left_out.add(example.id, "fit", unfit_reason)
        elif failed is not None:
            left_out.add(example.id, "where", f"not {failed}")
        elif curation.keeps(example):
            yield example
        else:
            last = curation.removed[-1]
            left_out.add(last.id, last.rule, last.why, reason=last.rule)


def _people_rated(reader: Reader, filters: Filter) -> bool:
    """Whether a person rated any of these trajectories: then ratings of machines are not mixed in."""
    rated: set[str | None] = set()
    for rating in reader.all_ratings():
        if rating.source is RaterSource.PERSON:
            rated |= {rating.trajectory_id, rating.other_id}
    return bool(rated) and any(trajectory_id in rated for trajectory_id in reader.matching_ids(filters))


def _of_people(example: Example) -> Example:
    """With the ratings of people alone."""
    ratings = tuple(rating for rating in example.ratings if rating.source is RaterSource.PERSON)
    return replace(example, ratings=ratings, rating=example.rating if ratings else None)


class Exclusion(NamedTuple):
    rule: str
    detail: str


def _excluded(
    reader: Reader, selection: TrajectorySelection, versions: Mapping[str, str]
) -> dict[str, Exclusion]:
    """The trajectories that a condition leaves out, found before any of them is read.

    A compressed version has other values than its original: conditions on it are checked when it is read.
    """
    excluded: dict[str, Exclusion] = {}
    for condition in selection.where:
        reason = Exclusion("where", f"not {condition.text}")
        for trajectory_id in reader.failing_ids(condition.sql, selection.filters):
            if trajectory_id not in versions:
                excluded.setdefault(trajectory_id, reason)
    return excluded


def in_version(example: Example, version: Trajectory) -> Example:
    """The compressed version, with the ratings of the original: each names the step that it is about by the
    version's own index. A rating of a step that the version no longer has is not one of the version."""
    originals = [step for step in example.trajectory.steps if not step.ephemeral]
    steps: dict[int, int] = {}
    remaining = list(version.steps)
    for original in reversed(originals):  # what is left out of a version is old
        if remaining and _same_step(original, remaining[-1]):
            steps[original.index] = remaining.pop().index
    ratings = []
    for rating in example.ratings:
        is_subject = rating.trajectory_id == example.id
        index = rating.step_index if is_subject else rating.other_step
        if index is None:
            ratings.append(rating)
        elif index in steps and is_subject:
            ratings.append(replace(rating, step_index=steps[index]))
        elif index in steps:
            ratings.append(replace(rating, other_step=steps[index]))
    return replace(example, trajectory=version, ratings=tuple(ratings))


def _renamed(rating: Rating, versions: Mapping[str, str]) -> Rating:
    """About the versions that the selection takes instead of the originals."""
    other_id = rating.other_id and versions.get(rating.other_id, rating.other_id)
    return replace(
        rating, trajectory_id=versions.get(rating.trajectory_id, rating.trajectory_id), other_id=other_id
    )


def _same_step(original: Step, remaining: Step) -> bool:
    """A version keeps the text and the calls of the model's messages; it may leave out the thinking."""
    if (original.kind, original.started_at_ms) != (remaining.kind, remaining.started_at_ms):
        return False
    left, right = original.message, remaining.message
    return original.kind is not StepKind.MODEL or (left.content, left.tool_calls) == (
        right.content,
        right.tool_calls,
    )


def unfit(example: Example, *, only_completed: bool, unanswered: bool = False) -> str | None:
    """Why a trajectory is no training data; None if it is. `unanswered`: those without an answer pass too."""
    outcome = example.trajectory.outcome
    if outcome is None:
        return "still running"
    if not unanswered and not any(message.role is Role.ASSISTANT for message in example.messages):
        return "the model never answered"
    if only_completed and outcome.stop_reason is not StopReason.COMPLETED:
        return outcome.stop_reason.value
    if only_completed and any(_interrupted(step) for step in example.trajectory.steps):
        return "an answer was interrupted"
    return None


def _interrupted(step: Step) -> bool:
    return step.call is not None and step.call.finish_reason == INTERRUPTED


def compressed_versions(reader: Reader) -> dict[str, str]:
    """Id of an original → id of its newest compressed version."""
    newest: dict[str, str] = {}
    before: str | None = None
    while page := reader.summaries(limit=_PAGE, before=before):
        for summary in page:
            if summary.relation == Relation.COMPRESSED.value and summary.parent_id is not None:
                newest.setdefault(summary.parent_id, summary.id)
        before = page[-1].id
    return newest
