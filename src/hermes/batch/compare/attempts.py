"""What a comparison of models reads: their attempts from the run folders, their steps from the store."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from hermes.batch.compare.scores import Attempt, Contender, disagreements
from hermes.core import JSONObject, Role, Trajectory
from hermes.data.diff import Difference, compare
from hermes.store import Reader


@dataclass(frozen=True, slots=True)
class Divergence:
    """Where two models part ways on a task that they did not do equally well."""

    key: str
    left_model: str
    right_model: str
    left: Attempt
    right: Attempt
    difference: Difference
    """Of the conversations without their system messages, which may name different workspaces."""

    def to_json(self) -> JSONObject:
        return {
            "key": self.key,
            "sample": self.left.sample,
            "left": _side(self.left_model, self.left),
            "right": _side(self.right_model, self.right),
            "difference": self.difference.to_json(),
        }


def read_attempts(folder: Path) -> list[Attempt]:
    """Every finished sample of a finalised run, also those that a filter kept aside."""
    attempts = []
    for name in ("trajectories.jsonl", "filtered.jsonl"):
        with (folder / name).open("rb") as file:
            attempts += [Attempt.from_row(json.loads(line)) for line in file]
    return attempts


def find_divergences(
    reader: Reader, contenders: Sequence[Contender], *, graded: bool
) -> Iterator[Divergence]:
    """For every two models and every task they disagree on."""
    for one, other in combinations(contenders, 2):
        for key, left, right in disagreements(one.attempts, other.attempts, graded=graded):
            a, b = (reader.get(each.trajectory_id) for each in (left, right))
            difference = compare(_without_system(a), _without_system(b))
            yield Divergence(key, one.model, other.model, left, right, difference)


def _without_system(trajectory: Trajectory) -> Trajectory:
    steps = [step for step in trajectory.steps if step.message.role is not Role.SYSTEM]
    return replace(trajectory, steps=steps)


def _side(model: str, attempt: Attempt) -> JSONObject:
    return {
        "model": model,
        "trajectory_id": attempt.trajectory_id,
        "reward": attempt.reward,
        "outcome": attempt.outcome,
    }
