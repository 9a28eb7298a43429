"""Rewards for the form of a text: tags, crossword answers, reasoning steps."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from typing import Any

from hermes.compat.atropos.reward_fns.function import RewardError, RewardFunction, per_completion
from hermes.errors import ConfigError, MissingDependencyError

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


class CosineScaledReward(RewardFunction):
    """1 - cosine distance * `scale_factor`, clamped to the two bounds."""

    def __init__(
        self,
        model_name: str | None = None,
        scale_factor: float = 1.0,
        min_reward: float = -1.0,
        max_reward: float = 1.0,
        weight: float = 1.0,
        **kwargs: Any,
    ) -> None:
        super().__init__(weight=weight, **kwargs)
        self.model_name = model_name or "sentence-transformers/all-MiniLM-L6-v2"
        self.scale_factor = scale_factor
        self.min_reward = min_reward
        self.max_reward = max_reward
        self._loaded: tuple[Any, Any] | None = None

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        if not (solution := kwargs.get("solution")):
            raise RewardError("the cosine_scaled reward was given no solution.")
        pairs = zip(completions, per_completion(solution, len(completions)), strict=True)
        return [
            self._score(self.get_content(completion), self.get_content(gold)) for completion, gold in pairs
        ]

    def _score(self, text: str, gold: str) -> float:
        import torch

        if not text.strip():
            return self.min_reward
        similarity = torch.nn.functional.cosine_similarity(self._embed(text), self._embed(gold), dim=0)
        return min(self.max_reward, max(self.min_reward, 1.0 - (1.0 - float(similarity)) * self.scale_factor))

    def _embed(self, text: str) -> Any:
        """The mean of the last layer over the tokens."""
        import torch

        tokenizer, model = self._load()
        encoded = tokenizer(text, return_tensors="pt", truncation=True, max_length=512)
        with torch.no_grad():
            return model(**encoded).last_hidden_state[0].mean(dim=0)

    def _load(self) -> tuple[Any, Any]:
        if self._loaded is None:
            from transformers import AutoModel, AutoTokenizer

            try:
                self._loaded = (
                    AutoTokenizer.from_pretrained(self.model_name),
                    AutoModel.from_pretrained(self.model_name).eval(),
                )
            except (OSError, ValueError) as error:
                raise ConfigError(
                    f"the embedding model '{self.model_name}' cannot be loaded: {str(error).splitlines()[0]}",
                    "Give model_name a model that is on this machine.",
                ) from error
        return self._loaded


_PAIRS = (
    "ai=E au=O kh=K gh=G ch=C jh=J ṭh=W ḍh=Q th=T dh=D ph=P bh=B ā=A ī=I ū=U ṛ=f ṝ=F ḷ=x ṅ=N ñ=Y ṭ=w ḍ=q "
    "ṇ=R ś=S ṣ=z ṃ=M ḥ=H"
)
_SLP1 = dict(re.findall(r"(\S+)=(\S)", _PAIRS))
_IAST = re.compile("|".join(_SLP1))


class ChandasMeterReward(RewardFunction):
    """How well a verse fits the metre, from 0 to 1, by the package's classifier."""

    def __init__(self, meter: str = "tristubh", weight: float = 1.0, **kwargs: Any) -> None:
        super().__init__(weight=weight, **kwargs)
        self.meter = meter
        self._classifier: Any = None

    def compute(self, completions: list[Any], **kwargs: Any) -> list[float]:
        return [self._score(self.get_content(completion)) for completion in completions]

    def _score(self, text: str) -> float:
        result = self._classify(to_slp1(text))
        if not result:
            return 0.0
        fits = str(getattr(result, "name", result)).lower() == self.meter.lower()
        score = float(getattr(result, "score", fits))
        return max(0.0, min(1.0, score if fits else 1.0 - score))

    def _classify(self, text: str) -> Any:
        if self._classifier is None:
            try:
                from chandas import Classifier  # type: ignore[import-not-found]
            except ImportError as error:
                missing = MissingDependencyError("chandas", "", "The reward chandas_meter")
                missing.hint = "pip install chandas"
                raise missing from error
            self._classifier = Classifier.from_default_location()
        return self._classifier.classify(text)


def to_slp1(text: str) -> str:
    """IAST as SLP1, in which every sound is one letter."""
    return _IAST.sub(lambda match: _SLP1[match[0]], text)
