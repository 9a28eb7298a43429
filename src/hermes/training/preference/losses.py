"""The losses of preference learning, with their gradients by sequence. Pure.

A loss sees the sum of the log-probabilities of a completion's tokens, under the policy and under the
reference. Its gradient by that sum is the same for every token of the completion, so a loss is trained over
the Tinker API in two passes: a forward pass gives the log-probabilities, and a cross-entropy pass whose
weights are the negated gradients has exactly the loss's gradient (`datums.weighted_datum`). Values and
gradients equal those of TRL for the losses of the same name.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class DpoLoss(StrEnum):
    SIGMOID = "sigmoid"
    """DPO; with label smoothing the conservative form, which assumes that labels are flipped at that rate."""
    ROBUST = "robust"
    """DPO whose expectation under labels flipped at the rate of label smoothing is that of clean labels."""
    IPO = "ipo"
    """A squared loss on log-ratios per token, which does not push a decided pair further apart."""
    SIGMOID_NORM = "sigmoid_norm"
    """DPO on log-ratios per token: longer completions have no advantage."""
    SIMPO = "simpo"
    """Length-normalised and without a reference, with a target margin."""


@dataclass(frozen=True, slots=True)
class DpoConfig:
    loss: DpoLoss = DpoLoss.SIGMOID
    beta: float = 0.1
    label_smoothing: float = 0.0
    """Share of pairs whose label is assumed to be wrong."""
    target_margin: float = 0.5
    """For simpo: how much better the chosen completion should be, in units of the loss's argument."""
    sft_weight: float = 0.0
    """Weight of the mean negative log-probability of the chosen tokens."""

    @property
    def uses_reference(self) -> bool:
        return self.loss is not DpoLoss.SIMPO


class CompletionLogprob(NamedTuple):
    """One completion, summed over its trained tokens."""

    policy: float
    reference: float
    tokens: int


class PairLoss(NamedTuple):
    """One pair: its loss, and the loss's gradient by the policy's summed log-probability of each side."""

    value: float
    chosen_gradient: float
    rejected_gradient: float


class SequenceLoss(NamedTuple):
    """One sequence or score: its loss, and the loss's gradient by the log-probability or the score."""

    value: float
    gradient: float


def dpo_losses(
    pairs: Sequence[tuple[CompletionLogprob, CompletionLogprob]], config: DpoConfig
) -> list[PairLoss]:
    """For each (chosen, rejected) its part of the batch's loss: the parts add up to the batch's mean."""
    scale = 1.0 / len(pairs)
    chosen_tokens = sum(chosen.tokens for chosen, _ in pairs)
    losses = []
    for chosen, rejected in pairs:
        value, by_chosen, by_rejected = _pair_loss(chosen, rejected, config)
        sft_scale = config.sft_weight / chosen_tokens if config.sft_weight else 0.0
        losses.append(
            PairLoss(
                scale * value - sft_scale * chosen.policy, scale * by_chosen - sft_scale, scale * by_rejected
            )
        )
    return losses


def _pair_loss(chosen: CompletionLogprob, rejected: CompletionLogprob, config: DpoConfig) -> PairLoss:
    per_token = config.loss in (DpoLoss.IPO, DpoLoss.SIGMOID_NORM, DpoLoss.SIMPO)
    chosen_size = max(1, chosen.tokens) if per_token else 1
    rejected_size = max(1, rejected.tokens) if per_token else 1
    chosen_reference, rejected_reference = (
        (chosen.reference, rejected.reference) if config.uses_reference else (0.0, 0.0)
    )
    delta = (chosen.policy - chosen_reference) / chosen_size
    delta -= (rejected.policy - rejected_reference) / rejected_size
    value, slope = _loss_of_difference(delta, config)
    return PairLoss(value, slope / chosen_size, -slope / rejected_size)


def _loss_of_difference(delta: float, config: DpoConfig) -> tuple[float, float]:
    """The loss and its derivative by `delta`, the difference of the two sides' log-ratios."""
    beta, smoothing = config.beta, config.label_smoothing
    if config.loss is DpoLoss.IPO:
        error = delta - 1 / (2 * beta)
        return error * error, 2 * error
    argument = beta * delta - (config.target_margin if config.loss is DpoLoss.SIMPO else 0.0)
    clean, flipped = -log_sigmoid(argument), -log_sigmoid(-argument)
    clean_slope, flipped_slope = -sigmoid(-argument), sigmoid(argument)
    if config.loss is DpoLoss.ROBUST:
        scale = 1 / (1 - 2 * smoothing)
        value = scale * ((1 - smoothing) * clean - smoothing * flipped)
        return value, beta * scale * ((1 - smoothing) * clean_slope - smoothing * flipped_slope)
    value = (1 - smoothing) * clean + smoothing * flipped
    return value, beta * ((1 - smoothing) * clean_slope + smoothing * flipped_slope)


@dataclass(frozen=True, slots=True)
class KtoConfig:
    beta: float = 0.1
    desirable_weight: float = 1.0
    undesirable_weight: float = 1.0


def kto_divergence(mismatched: Sequence[CompletionLogprob]) -> float:
    """The estimate of KL(policy‖reference): over prompts with completions of other prompts, at least 0."""
    if not mismatched:
        return 0.0
    return max(0.0, sum(row.policy - row.reference for row in mismatched) / len(mismatched))


def kto_losses(
    completions: Sequence[CompletionLogprob],
    desirable: Sequence[bool],
    divergence: float,
    config: KtoConfig,
) -> list[SequenceLoss]:
    """For each completion its part of the batch's loss: the parts add up to the mean."""
    scale = 1.0 / len(completions)
    losses = []
    for completion, is_desirable in zip(completions, desirable, strict=True):
        ratio = completion.policy - completion.reference
        weight = config.desirable_weight if is_desirable else config.undesirable_weight
        sign = 1.0 if is_desirable else -1.0
        utility = sigmoid(sign * config.beta * (ratio - divergence))
        slope = -weight * sign * config.beta * utility * (1 - utility)
        losses.append(SequenceLoss(scale * weight * (1 - utility), scale * slope))
    return losses


def bradley_terry(
    pairs: Sequence[tuple[float, float]], margins: Sequence[float], centre: float = 0.0
) -> list[PairLoss]:
    """−log σ(r⁺ − r⁻ − margin) + centre · (r⁺ + r⁻)², for each pair of scores, as a part of the mean."""
    scale = 1.0 / len(pairs)
    losses = []
    for (chosen, rejected), margin in zip(pairs, margins, strict=True):
        argument = chosen - rejected - margin
        slope, total = -sigmoid(-argument), chosen + rejected
        value = -log_sigmoid(argument) + centre * total * total
        drift = 2 * centre * total
        losses.append(PairLoss(scale * value, scale * (slope + drift), scale * (drift - slope)))
    return losses


def pointwise(scores: Sequence[float], targets: Sequence[float]) -> list[SequenceLoss]:
    """The cross-entropy of σ(score) towards a target from 0 to 1, as a part of the mean."""
    scale = 1.0 / len(scores)
    return [
        SequenceLoss(
            -scale * (target * log_sigmoid(score) + (1 - target) * log_sigmoid(-score)),
            scale * (sigmoid(score) - target),
        )
        for score, target in zip(scores, targets, strict=True)
    ]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def log_sigmoid(x: float) -> float:
    return -math.log1p(math.exp(-x)) if x >= 0 else x - math.log1p(math.exp(x))
