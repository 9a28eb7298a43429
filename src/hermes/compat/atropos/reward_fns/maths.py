"""Rewards for answers that are right or wrong: by value, by their form, or by both."""

from __future__ import annotations

import re
from typing import Any

from hermes.compat.atropos.reward_fns.function import RewardError, RewardFunction, per_completion
from hermes.envs.rewards.mathematics import MathGrader, final_answer

_THOUGHT = re.compile(r"<think>(.*?)</think>", re.DOTALL)


class AccuracyReward(RewardFunction):
    """1 where the answer equals the solution in value: boxed, after ####, or plain."""

    def __init__(
        self,
        tolerance: float = 1e-6,
        split_on_think_tag: bool = True,
        max_boxed_threshold: int = 6,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.tolerance = tolerance
        self.split_on_think_tag = split_on_think_tag
        self.max_boxed_threshold = max_boxed_threshold
        """More boxes than this in one answer are a list of guesses, and wrong."""
        self._grader: MathGrader | None = None

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        given = kwargs.get("ground_truth")
        expected = given if given is not None else kwargs.get("solution")
        if expected is None:
            raise RewardError("the accuracy reward was given no solution.")
        pairs = zip(completions, per_completion(expected, len(completions)), strict=True)
        return [float(self._is_right(self.get_content(one), str(gold))) for one, gold in pairs]

    def _is_right(self, text: str, gold: str) -> bool:
        answer = text.rpartition("</think>")[2] if self.split_on_think_tag else text
        if answer.count("\\boxed") > self.max_boxed_threshold:
            return False
        said, wanted = _number(final_answer(answer)), _number(final_answer(gold))
        if said is not None and wanted is not None:
            return abs(said - wanted) <= self.tolerance
        if self._grader is None:
            self._grader = MathGrader()
        return self._grader.grade(answer, final_answer(gold)).success


def _number(text: str) -> float | None:
    try:
        return float(text.strip().rstrip(".").replace(",", "").removeprefix("$").rstrip("%"))
    except ValueError:
        return None


class FormatReasoningReward(RewardFunction):
    """Thinks first, once, and then answers."""

    def __init__(
        self,
        reward_value: float = 1.0,
        require_thinking: bool = True,
        require_response: bool = True,
        allow_multiple_thinking: bool = False,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.reward_value = reward_value
        self.require_thinking = require_thinking
        self.require_response = require_response
        self.allow_multiple_thinking = allow_multiple_thinking

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        return [self.reward_value if self._fits(self.get_content(one)) else 0.0 for one in completions]

    def _fits(self, text: str) -> bool:
        thoughts = _THOUGHT.findall(text)
        return (
            (bool(thoughts and thoughts[0].strip()) or not self.require_thinking)
            and (bool(_said(text)) or not self.require_response)
            and (len(thoughts) <= 1 or self.allow_multiple_thinking)
        )


def _said(text: str) -> str:
    """What comes after the thinking."""
    return text.rpartition("</think>")[2].strip()


class AccuracyXReward(RewardFunction):
    """The response says the solution, or contains it."""

    def __init__(
        self,
        exact_match: bool = False,
        case_sensitive: bool = False,
        reward_value: float = 1.0,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.exact_match = exact_match
        self.case_sensitive = case_sensitive
        self.reward_value = reward_value

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        if (solution := kwargs.get("solution")) is None:
            raise RewardError("the accuracy reward was given no solution.")
        pairs = zip(completions, per_completion(solution, len(completions)), strict=True)
        return [self.reward_value if self._says(self.get_content(one), gold) else 0.0 for one, gold in pairs]

    def _says(self, text: str, gold: Any) -> bool:
        wanted = gold if isinstance(gold, str) else self.get_content(gold) or str(gold)
        said = _said(text)
        if not self.case_sensitive:
            wanted, said = wanted.lower(), said.lower()
        return said == wanted if self.exact_match else wanted in said


class R1Reward(RewardFunction):
    """Form and solution, each with its weight."""

    def __init__(
        self, format_weight: float = 0.5, accuracy_weight: float = 1.0, weight: float = 1.0, **kwargs: Any
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.format_weight = format_weight
        self.accuracy_weight = accuracy_weight
        self.format_reward_fn = FormatReasoningReward()
        self.accuracy_reward_fn = AccuracyXReward()

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        forms = self.format_reward_fn.compute(completions, **kwargs)
        right = self.accuracy_reward_fn.compute(completions, **kwargs)
        return [
            form * self.format_weight + one * self.accuracy_weight
            for form, one in zip(forms, right, strict=True)
        ]


class CascadingR1MathReward(RewardFunction):
    """1 for the right value, and half as much again if it was thought about in due form; form alone is 0."""

    _FORM = re.compile(r"<think>[^<]*</think>[^<]*", re.DOTALL)

    def __init__(self, weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(weight=weight, **kwargs)
        self._accuracy = AccuracyReward()

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        right = self._accuracy.compute(completions, **kwargs)
        return [
            value * (1.5 if self._FORM.fullmatch(self.get_content(one)) else 1.0)
            for value, one in zip(right, completions, strict=True)
        ]
