"""Rewards for the form of a text: tags, crossword answers, reasoning steps."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from hermes.compat.atropos.reward_fns.function import RewardFunction


class FormatReward(RewardFunction):
    """1 if the text has a closed pair of any of the tags, or, with `require_all_tags`, of all."""

    def __init__(
        self,
        preferred_tags: Sequence[str] | None = None,
        require_all_tags: bool = False,
        case_sensitive: bool = False,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.preferred_tags = list(preferred_tags or ("think", "answer"))
        self.require_all_tags = require_all_tags
        self.case_sensitive = case_sensitive

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        flags = re.DOTALL | (0 if self.case_sensitive else re.IGNORECASE)
        tags = [re.compile(f"<{re.escape(tag)}>.*?</{re.escape(tag)}>", flags) for tag in self.preferred_tags]
        combine = all if self.require_all_tags else any
        return [
            float(combine(tag.search(text) for tag in tags)) for text in map(self.get_content, completions)
        ]


class CrosswordFormatReward(RewardFunction):
    """Answers like `1-Across: WORD`, in the valid letters only."""

    _ANSWER = re.compile(r"(?:Across|Down):\s+([^\s,]+)", re.IGNORECASE)

    def __init__(
        self,
        format_patterns: Sequence[re.Pattern[str]] | None = None,
        reward_value: float = 1.0,
        penalize_invalid_chars: bool = True,
        valid_chars: str = "ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        default = re.compile(r"\d+-(?:Across|Down):\s+[A-Z]", re.IGNORECASE)
        self.format_patterns = list(format_patterns or [default])
        self.reward_value = reward_value
        self.penalize_invalid_chars = penalize_invalid_chars
        self.valid_chars = valid_chars.upper()

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        return [self.reward_value if self._fits(text) else 0.0 for text in map(self.get_content, completions)]

    def _fits(self, text: str) -> bool:
        if not any(pattern.search(text) for pattern in self.format_patterns):
            return False
        letters = "".join(self._ANSWER.findall(text)).upper()
        return not self.penalize_invalid_chars or all(letter in self.valid_chars for letter in letters)


class ReasoningStepsReward(RewardFunction):
    """The sum of signs of step-by-step reasoning, each up to its weight; 1 at most."""

    _SIGNS: Mapping[str, str] = {
        "numbered_steps": r"\bstep\s+\d+\b",
        "list_numbers": r"^\s*\d+\.\s+",
        "bullet_points": r"^\s*[-*•]\s+",
        "transition_words": (
            r"\b(?:first|second|third|next|then|after that|afterwards?|finally|lastly|initially|"
            r"subsequently|eventually|to begin|in conclusion)\b"
        ),
    }
    _WEIGHTS: Mapping[str, float] = {
        "numbered_steps": 0.5,
        "list_numbers": 0.5,
        "bullet_points": 0.4,
        "transition_words": 0.3,
    }

    def __init__(
        self,
        min_words: int = 10,
        min_steps: int = 3,
        base_score: float = 0.1,
        pattern_weights: Mapping[str, float] | None = None,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.min_words = min_words
        self.min_steps = min_steps
        self.base_score = base_score
        self.pattern_weights = {**self._WEIGHTS, **(pattern_weights or {})}

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        return [self._score(self.get_content(completion)) for completion in completions]

    def _score(self, text: str) -> float:
        score = self.base_score if len(text.split()) > self.min_words else 0.0
        for sign, pattern in self._SIGNS.items():
            count = len(re.findall(pattern, text, re.IGNORECASE | re.MULTILINE))
            score += min(1.0, count / self.min_steps) * self.pattern_weights[sign]
        return min(1.0, score)
