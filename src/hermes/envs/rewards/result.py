"""The result of a grader, and the rule for all of them: a grader that cannot grade raises, never returns 0.

A `RewardResult` is a finite value with its parts, so that a run can log correctness, form and effort in
separate columns. `GraderError` means that the grader itself failed (an unreachable endpoint, an invalid
expected value), which says nothing about the policy.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from hermes.batch.reward import GraderError

__all__ = ["TRUE_REWARD", "GraderError", "RewardResult", "failed", "passed"]

TRUE_REWARD = "true_reward"
"""The part of a reward that a learned score stands for; it is reported to the trainer, never trained on."""


@dataclass(frozen=True, slots=True)
class RewardResult:
    value: float
    parts: Mapping[str, float] = field(default_factory=dict)
    """Named signals behind the value, each finite; `success`, if present, is the strict verdict."""
    detail: str = ""
    """One line for a person: the reason for the value."""

    def __post_init__(self) -> None:
        for name, number in (("value", self.value), *self.parts.items()):
            if not _finite(number):
                raise GraderError(f"the reward's {name} is {number!r}, not a finite number")

    @property
    def success(self) -> bool:
        """The strict verdict: the part of that name, or else a value of 1."""
        return self.parts.get("success", self.value) >= 1.0

    def with_parts(self, parts: Mapping[str, float]) -> RewardResult:
        return replace(self, parts={**self.parts, **parts})


def _finite(number: object) -> bool:
    return isinstance(number, int | float) and math.isfinite(number)


def passed(detail: str = "") -> RewardResult:
    return RewardResult(1.0, detail=detail)


def failed(detail: str) -> RewardResult:
    """A graded failure: the response was graded and is wrong."""
    return RewardResult(0.0, detail=detail)
