"""Reads what a comparison of models needs: attempts from the run folders, trajectories from the store."""

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
    """Where two models first diverge on a task that they did not do equally well."""

    key: str
    left_model: str
    right_model: str
    left: Attempt
    right: Attempt
    difference: Difference
    """Where the conversations part, without their system messages, which may name different workspaces."""

    def to_json(self) -> JSONObject:
        return {
            "key": self.key,
            "sample": self.left.sample,
            "left": _side(self.left_model, self.left),
            "right": _side(self.right_model, self.right),
            "difference": self.difference.to_json(),
        }


def read_attempts(folder: Path) -> list[Attempt]:
    """Every finished sample of a finalised run, including those that a filter removed."""
    attempts = []
    for name in ("trajectories.jsonl", "filtered.jsonl"):
        with (folder / name).open("rb") as file:
            attempts += [Attempt.from_row(json.loads(line)) for line in file]
    return attempts


def find_divergences(
    reader: Reader, contenders: Sequence[Contender], *, graded: bool
) -> Iterator[Divergence]:
    """For every two models and every task they disagree on."""
    for first, second in combinations(contenders, 2):
        for key, left, right in disagreements(first.attempts, second.attempts, graded=graded):
            a, b = (_without_system(reader.get(attempt.trajectory_id)) for attempt in (left, right))
            yield Divergence(key, first.model, second.model, left, right, compare(a, b))


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
