"""Training of a reward model: Bradley–Terry on pairs, or cross-entropy on ratings from 1 to 5.

A score is the read-out of `readout`; each answer is two sequences that share all but their last token. The
gradient by a score is that by the first word's log-probability, and its negative by the second's.
"""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, TypeVar

from hermes.data.preference.pairs import PreferencePair, PreferenceSource
from hermes.training.offline import EVAL_LOSS, LOSS, OfflineObjective, rows_of_step
from hermes.training.preference.examples import (
    RatedCompletion,
    RowLimits,
    RowSplit,
    check_enough,
    consistent_pairs,
    sort_in,
)
from hermes.training.preference.losses import bradley_terry, pointwise, sigmoid
from hermes.training.preference.readout import (
    ReadOut,
    ReadOutTokens,
    rating_prompt,
    readout_pair,
)
from hermes.training.preference.reference import CROSS_ENTROPY, gradient_datums, policy_logprobs
from hermes.training.service.client import AdapterClient

if TYPE_CHECKING:
    from hermes.models.render.chat import ChatRenderer

KIND = "reward"
_STARS = 4.0
"""The distance from the worst rating to the best."""
Row = TypeVar("Row", "RewardPair", "RewardPoint")


class RewardLoss(StrEnum):
    BRADLEY_TERRY = "bradley-terry"
    """From pairs: the preferred answer scores higher."""
    POINTWISE = "pointwise"
    """From ratings: σ(score) is the rating as a share of the way from 1 to 5."""


@dataclass(frozen=True, slots=True)
class RewardConfig:
    loss: RewardLoss = RewardLoss.BRADLEY_TERRY
    margin: float = 1.0
    """By how much the strongest preference has to be scored apart; weaker ones by less. 0: no margin."""
    centre: float = 0.01
    """Weight of (r⁺ + r⁻)², which keeps scores around 0."""


@dataclass(frozen=True, slots=True)
class RewardPair:
    chosen: tuple[int, ...]
    """The rating prompt of the preferred answer."""
    rejected: tuple[int, ...]
    margin: float
    chosen_words: int
    rejected_words: int


@dataclass(frozen=True, slots=True)
class RewardPoint:
    prompt: tuple[int, ...]
    target: float
    """From 0 to 1."""


def strength(pair: PreferencePair) -> float:
    """How clear the preference is, from 0 to 1: by the difference of ratings, or the strength of a choice."""
    if pair.origin is PreferenceSource.RATING:
        return min(1.0, pair.margin / _STARS)
    if pair.origin is PreferenceSource.RETRY:
        return 0.0
    return max(0.0, min(1.0, pair.margin))


def reward_pairs(
    pairs: Sequence[PreferencePair],
    readout: ReadOut,
    renderer: ChatRenderer,
    left_out: Counter[str],
    limits: RowLimits,
) -> RowSplit[RewardPair]:
    """HermesError if too few are left."""
    split = RowSplit[RewardPair](left_out=left_out)
    for pair in consistent_pairs(pairs, left_out):
        sides = [
            rating_prompt((*pair.prompt, *completion), pair.tools, readout, renderer)
            for completion in (pair.chosen, pair.rejected)
        ]
        if max(map(len, sides)) >= limits.longest:
            left_out[f"longer than {limits.longest} tokens"] += 1
            continue
        words = [
            sum(len(message.content.split()) for message in completion)
            for completion in (pair.chosen, pair.rejected)
        ]
        sort_in(split, RewardPair(sides[0], sides[1], strength(pair), *words), pair.task, limits)
    check_enough(split, "pairs", limits.min_rows)
    return split


def reward_points(
    rated: Sequence[RatedCompletion],
    readout: ReadOut,
    renderer: ChatRenderer,
    left_out: Counter[str],
    limits: RowLimits,
) -> RowSplit[RewardPoint]:
    """HermesError if too few are left."""
    split = RowSplit[RewardPoint](left_out=left_out)
    for row in rated:
        prompt = rating_prompt((*row.prompt, *row.completion), row.tools, readout, renderer)
        if len(prompt) >= limits.longest:
            left_out[f"longer than {limits.longest} tokens"] += 1
            continue
        sort_in(split, RewardPoint(prompt, (row.score - 1) / _STARS), row.task, limits)
    check_enough(split, "rated answers", limits.min_rows)
    return split


class RewardObjective(OfflineObjective["RewardPair | RewardPoint"]):
    """Scores that agree with the verdicts."""

    kind = KIND

    def __init__(
        self,
        rows: RowSplit[RewardPair] | RowSplit[RewardPoint],
        config: RewardConfig,
        readout: ReadOut,
        words: ReadOutTokens,
    ) -> None:
        """`words`: those of the read-out, as tokens of the model."""
        super().__init__(rows.train, rows.held_out)
        self._config = config
        self._readout = readout
        self._words = words

    @property
    def probe(self) -> Sequence[int]:
        return (*_prompts(self.train[:1])[0], self._words.good)

    @property
    def identity(self) -> Mapping[str, object]:
        digest = hashlib.blake2b(repr(self.train).encode(), digest_size=8)
        return {
            "data": digest.hexdigest(),
            "loss": json_safe(asdict(self._config)),
            "readout": asdict(self._readout),
        }

    def accumulate(self, client: AdapterClient, step: int, seed: int, batch_size: int) -> dict[str, float]:
        rows = rows_of_step(self.train, step, batch_size, seed)
        completions = [side for prompt in _prompts(rows) for side in readout_pair(prompt, self._words)]
        scores = _differences(policy_logprobs(client, completions))
        loss, gradients = self._loss(rows, scores)
        by_word = [value for gradient in gradients for value in (gradient, -gradient)]
        client.forward_backward(gradient_datums(completions, by_word), CROSS_ENTROPY)
        return {LOSS: loss, **_metrics(rows, scores)}

    def evaluate(self, client: AdapterClient) -> dict[str, float]:
        completions = [
            side for prompt in _prompts(self.held_out) for side in readout_pair(prompt, self._words)
        ]
        scores = _differences(policy_logprobs(client, completions))
        metrics = {f"eval/{name}": value for name, value in _metrics(self.held_out, scores).items()}
        return {EVAL_LOSS: self._loss(self.held_out, scores)[0], **metrics}

    def describe(self, metrics: Mapping[str, float]) -> str:
        text = f"accuracy {metrics['rewards/accuracy']:.2f}" if "rewards/accuracy" in metrics else ""
        if "eval/rewards/accuracy" in metrics:
            text += f"  held-out accuracy {metrics['eval/rewards/accuracy']:.2f}"
        return text

    def _loss(
        self, rows: Sequence[RewardPair | RewardPoint], scores: Sequence[float]
    ) -> tuple[float, list[float]]:
        """The mean loss, and its gradient by each score."""
        targets = [row.target for row in rows if isinstance(row, RewardPoint)]
        if targets:
            points = pointwise(scores, targets)
            return sum(loss.value for loss in points), [loss.gradient for loss in points]
        margins = [self._config.margin * row.margin for row in rows if isinstance(row, RewardPair)]
        losses = bradley_terry(
            list(zip(scores[::2], scores[1::2], strict=True)), margins, self._config.centre
        )
        gradients = [
            gradient for loss in losses for gradient in (loss.chosen_gradient, loss.rejected_gradient)
        ]
        return sum(loss.value for loss in losses), gradients


def json_safe(values: Mapping[str, object]) -> dict[str, object]:
    return {name: str(value) if isinstance(value, StrEnum) else value for name, value in values.items()}


def _prompts(rows: Sequence[RewardPair | RewardPoint]) -> list[tuple[int, ...]]:
    """Chosen, rejected, chosen, rejected …, or one for each rated answer."""
    return [
        prompt
        for row in rows
        for prompt in ((row.chosen, row.rejected) if isinstance(row, RewardPair) else (row.prompt,))
    ]


def _differences(logprobs: Sequence[float]) -> list[float]:
    return [good - bad for good, bad in zip(logprobs[::2], logprobs[1::2], strict=True)]


def _metrics(rows: Sequence[RewardPair | RewardPoint], scores: Sequence[float]) -> dict[str, float]:
    if isinstance(rows[0], RewardPair):
        differences = [better - worse for better, worse in zip(scores[::2], scores[1::2], strict=True)]
        return {
            "rewards/accuracy": sum(difference > 0 for difference in differences) / len(differences),
            "rewards/margin": statistics.fmean(differences),
            "rewards/mean": statistics.fmean(scores),
        }
    targets = [row.target for row in rows if isinstance(row, RewardPoint)]
    errors = [abs(sigmoid(score) - target) for score, target in zip(scores, targets, strict=True)]
    return {"rewards/mean": statistics.fmean(scores), "rewards/error": statistics.fmean(errors)}
