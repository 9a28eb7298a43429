"""Rewards for right or wrong answers: by value, by form, or by both."""

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
        """More boxes than this in one response are a list of guesses, and wrong."""
        self._grader: MathGrader | None = None

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        ground_truth = kwargs.get("ground_truth")
        expected = ground_truth if ground_truth is not None else kwargs.get("solution")
        if expected is None:
            raise RewardError("the accuracy reward was given no solution.")
        pairs = zip(completions, per_completion(expected, len(completions)), strict=True)
        return [float(self._is_right(self.get_content(completion), str(gold))) for completion, gold in pairs]

    def _is_right(self, text: str, gold: str) -> bool:
        response = text.rpartition("</think>")[2] if self.split_on_think_tag else text
        if response.count("\\boxed") > self.max_boxed_threshold:
            return False
        number, gold_number = _number(final_answer(response)), _number(final_answer(gold))
        if number is not None and gold_number is not None:
            return abs(number - gold_number) <= self.tolerance
        if self._grader is None:
            self._grader = MathGrader()
        return self._grader.grade(response, final_answer(gold)).success


def _number(text: str) -> float | None:
    try:
        return float(text.strip().rstrip(".").replace(",", "").removeprefix("$").rstrip("%"))
    except ValueError:
        return None


class FormatReasoningReward(RewardFunction):
    """The response is one block of thinking, then text."""

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
        return [self.reward_value if self._fits(text) else 0.0 for text in map(self.get_content, completions)]

    def _fits(self, text: str) -> bool:
        thoughts = _THOUGHT.findall(text)
        return (
            (bool(thoughts and thoughts[0].strip()) or not self.require_thinking)
            and (bool(_after_thinking(text)) or not self.require_response)
            and (len(thoughts) <= 1 or self.allow_multiple_thinking)
        )


def _after_thinking(text: str) -> str:
    return text.rpartition("</think>")[2].strip()


class AccuracyXReward(RewardFunction):
    """The response equals the solution, or contains it."""

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
        return [
            self.reward_value if self._matches(self.get_content(completion), gold) else 0.0
            for completion, gold in pairs
        ]

    def _matches(self, text: str, gold: Any) -> bool:
        solution = gold if isinstance(gold, str) else self.get_content(gold) or str(gold)
        response = _after_thinking(text)
        if not self.case_sensitive:
            solution, response = solution.lower(), response.lower()
        return response == solution if self.exact_match else solution in response


class R1Reward(RewardFunction):
    """The weighted sum of form and accuracy."""

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
        accuracies = self.accuracy_reward_fn.compute(completions, **kwargs)
        return [
            form * self.format_weight + accuracy * self.accuracy_weight
            for form, accuracy in zip(forms, accuracies, strict=True)
        ]


class CascadingR1MathReward(RewardFunction):
    """1 for the right value, 1.5 if the response also has the form of thinking and text; form alone is 0."""

    _FORM = re.compile(r"<think>[^<]*</think>[^<]*", re.DOTALL)

    def __init__(self, weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(weight=weight, **kwargs)
        self._accuracy = AccuracyReward()

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        accuracies = self._accuracy.compute(completions, **kwargs)
        return [
            accuracy * (1.5 if self._FORM.fullmatch(self.get_content(completion)) else 1.0)
            for accuracy, completion in zip(accuracies, completions, strict=True)
        ]
