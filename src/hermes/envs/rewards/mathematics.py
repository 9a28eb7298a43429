"""Rewards for mathematical answers: equal in value, whatever the notation (`batch.grading.mathematics`)."""

from __future__ import annotations

from hermes.batch.grading.mathematics import MathComparison, final_answer
from hermes.envs.rewards.result import RewardResult, failed, passed

__all__ = ["MathGrader", "final_answer"]


class MathGrader:
    """Grades answers by value, in one worker process; `close` ends it."""

    def __init__(self, timeout_s: float = 10.0) -> None:
        self._comparison = MathComparison(timeout_s)

    def grade(self, response: str, expected: str) -> RewardResult:
        """1 if the final answer of the response equals the expected one."""
        difference = self._comparison.difference(response, expected)
        return passed() if difference is None else failed(difference)

    def close(self) -> None:
        self._comparison.close()
