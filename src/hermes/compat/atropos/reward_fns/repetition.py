"""A penalty for repetition: 0 for none, down to -1."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from hermes.compat.atropos.reward_fns.function import RewardFunction

_COMMON = (
    "that this with from have they them their then than there these those what when where which while will "
    "would could should about because been being into only other some such very were your"
)
_STOPWORDS = frozenset(re.findall(r"\w+", _COMMON))
_WEIGHTS: Mapping[str, float] = {
    "word_repetition": 0.3,
    "phrase_repetition": 0.4,
    "consecutive_repetition": 0.6,
    "beginning_repetition": 0.5,
}


class RepetitionPenaltyReward(RewardFunction):
    """Weighs repeated words, phrases, stutters and sentence beginnings; a repeated sentence is worst."""

    def __init__(
        self,
        threshold: float = 0.05,
        min_words: int = 10,
        min_sentences: int = 2,
        short_text_penalty: float = -0.1,
        paragraph_repetition_base_penalty: float = -0.6,
        component_weights: Mapping[str, float] | None = None,
        stopwords: Collection[str] | None = None,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.threshold = threshold
        self.min_words = min_words
        self.min_sentences = min_sentences
        self.short_text_penalty = short_text_penalty
        self.paragraph_repetition_base_penalty = paragraph_repetition_base_penalty
        self.component_weights = {**_WEIGHTS, **(component_weights or {})}
        self.stopwords = frozenset(stopwords or _STOPWORDS)

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        return [self._penalty(self.get_content(completion)) for completion in completions]

    def _penalty(self, text: str) -> float:
        words = re.findall(r"\w+", text.lower())
        sentences = [part.strip() for part in re.split(r"[.!?]", text) if part.strip()]
        if len(words) < self.min_words or len(sentences) < self.min_sentences:
            return self.short_text_penalty
        repeated = repeats([sentence for sentence in sentences if len(sentence.split()) > 3])
        if repeated:
            return max(-1.0, self.paragraph_repetition_base_penalty - 0.4 * repeated / len(sentences))
        rates = self._rates(words, sentences)
        score = sum(self.component_weights[name] * rate for name, rate in rates.items())
        if score <= self.threshold:
            return 0.0
        return -max(0.1, min(1.0, (score - self.threshold) / (1 - self.threshold)))

    def _rates(self, words: Sequence[str], sentences: Sequence[str]) -> dict[str, float]:
        content_words = [word for word in words if len(word) > 3 and word not in self.stopwords]
        frequent = [word for word, count in Counter(content_words).items() if count > 2]
        phrases = sum(
            size / 3 * repeats([tuple(words[at : at + size]) for at in range(len(words) - size + 1)])
            for size in (3, 4, 5)
        )
        stutters = sum(a == b and len(a) > 2 for a, b in pairwise(words))
        beginnings = [tuple(sentence.split()[:3]) for sentence in sentences if len(sentence.split()) >= 3]
        return {
            "word_repetition": repeats([word for word in content_words if word in frequent]) / len(words),
            "phrase_repetition": phrases / len(words),
            "consecutive_repetition": stutters / len(words),
            "beginning_repetition": repeats(beginnings) / len(sentences),
        }


def repeats(values: Sequence[Any]) -> int:
    """Number of values that equal an earlier one."""
    return len(values) - len(set(values))
