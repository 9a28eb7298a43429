"""From served groups to the batch of one update: its sequences and their token advantages. Pure.

Every sequence that is not trained on is counted by its reason: rejected, stale or too long. Groups without
signal are counted too. A stale or overlong sequence still counts in the mean of its group, because its score
is as valid as any other.

The loss is the mean over the trained tokens of the batch: all tokens of the masks of the sequences of groups
with signal. A sequence whose score is exactly the mean of its group is one of them, although its advantage is
0: else the size of an update would depend on whether a score meets the mean. Groups without signal are not:
they would only make every update smaller. `data/trained_tokens` is this number.
"""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hermes.core.json import JSONObject
from hermes.core.sequence import RolloutGroup, TrainSequence, from_group
from hermes.training.data.advantages import Baseline, advantages
from hermes.training.data.datums import importance_weights
from hermes.training.data.metrics import dropped_metrics, group_metrics, staleness_metrics

DEFAULT_STALENESS = 4
TOO_OLD = "sampled too many steps ago"
TOO_LONG = "longer than the longest sequence that is trained on"
_KL_WEIGHT_CAP = 10.0
"""The cap of a token's importance weight in the estimate of the divergence."""
_FOREIGN = "sampled with weights that this run does not have"
_SHORT_REASONS = {TOO_OLD: "stale", TOO_LONG: "too_long", _FOREIGN: "foreign"}
"""As metrics name them."""


@dataclass(frozen=True, slots=True)
class TrainBatch:
    sequences: tuple[TrainSequence, ...]
    """Those to train on: of groups with signal, also those whose own advantages are 0."""
    metrics: dict[str, float]
    left_out: Counter[str]
    """Reason → sequences that are not trained on, whatever their scores."""
    untrainable: bool
    """There is nothing to train on, and the reason is not a lack of signal."""
    present: tuple[tuple[float, ...], ...] | None = None
    """By sequence and token the logprobs under the present weights; None: not computed."""


@dataclass(frozen=True, slots=True)
class BatchConfig:
    baseline: Baseline = Baseline.MEAN
    max_staleness: int = DEFAULT_STALENESS
    """Steps; a sequence that was sampled earlier is not trained on."""
    max_tokens: int = 1 << 20
    """Longest sequence."""
    distill: float = 0.0
    """Weight of the teacher in the advantages; 0: no distillation."""
    rewards: float = 1.0
    """Weight of the scores in the advantages; 0: distillation only."""


def prepare(served: Sequence[JSONObject], config: BatchConfig, step: int) -> TrainBatch:
    """The batch for an update of weights that have made `step` steps.

    Groups are ordered by their content, so that the update does not depend on which of them arrived first."""
    groups = [
        from_group(group) for group in sorted(served, key=lambda group: (group["tokens"], group["scores"]))
    ]
    scored = [group for group in groups if group.sequences]
    values = advantages([group.scores for group in scored], config.baseline)
    by_group = [
        _with_advantages(group, by_rollout, config) for group, by_rollout in zip(scored, values, strict=True)
    ]
    candidates = [sequence for sequences in by_group for sequence in sequences]
    reasons = [_skip_reason(sequence, config, step) for sequence in candidates]
    rejected = sum((group.rejected for group in groups), Counter[str]())
    left_out = rejected + Counter(reason for reason in reasons if reason is not None)
    trained = tuple(
        sequence
        for sequences in by_group
        if any(any(sequence.advantages) for sequence in sequences)
        for sequence in sequences
        if _skip_reason(sequence, config, step) is None
    )
    if not any(any(sequence.advantages) for sequence in trained):
        trained = ()
    signals = sum(
        by_rollout is not None or group.has_token_advantages
        for group, by_rollout in zip(scored, values, strict=True)
    )
    sequences = [sequence for group in scored for sequence in group.sequences]
    metrics = group_metrics(scored, signals) | staleness_metrics(sequences, step, left_out[TOO_OLD])
    metrics |= dropped_metrics(scored, zip(candidates, reasons, strict=True), _SHORT_REASONS)
    metrics["data/trained_tokens"] = float(sum(sequence.trained_tokens for sequence in trained))
    metrics["data/too_long"] = float(left_out[TOO_LONG])
    metrics["data/refused"] = float(rejected.total() + left_out[_FOREIGN])
    return TrainBatch(trained, metrics, left_out, not trained and _lost_signal(candidates, reasons, left_out))


def _lost_signal(
    candidates: Sequence[TrainSequence], reasons: Sequence[str | None], left_out: Counter[str]
) -> bool:
    """Whether a sequence with signal was left out, or at least as many were left out as could be used."""
    usable = sum(reason is None for reason in reasons)
    return left_out.total() >= max(1, usable) or any(
        reason is not None and any(sequence.advantages)
        for sequence, reason in zip(candidates, reasons, strict=True)
    )


def _skip_reason(sequence: TrainSequence, config: BatchConfig, step: int) -> str | None:
    if max(sequence.policy_steps, default=0) > step:
        return _FOREIGN
    staleness = sequence.staleness(step)
    if staleness is not None and staleness > config.max_staleness:
        return TOO_OLD
    return TOO_LONG if len(sequence.tokens) > config.max_tokens else None


def _with_advantages(
    group: RolloutGroup, by_rollout: list[float] | None, config: BatchConfig
) -> list[TrainSequence]:
    """The sequences of a group that are to be trained on, with their final advantages.

    `by_rollout`: the advantages of its rollouts; None: the group has no signal."""
    rollout_ids = {sequence.rollout.id: None for sequence in group.sequences}
    by_id = dict(zip(rollout_ids, by_rollout or (), strict=False))
    return [
        replace(sequence, advantages=_advantages(sequence, by_id.get(sequence.rollout.id, 0.0), config))
        for sequence in group.sequences
        if not sequence.exclude_from_loss
    ]


def _advantages(sequence: TrainSequence, advantage: float, config: BatchConfig) -> tuple[float, ...]:
    size = len(sequence.tokens)
    earned = sequence.advantages or (advantage,) * size
    taught = [0.0] * size
    if config.distill and sequence.teacher_logprobs:
        taught = teacher_terms(sequence.logprobs, sequence.teacher_logprobs, config.distill)
    return tuple(
        config.rewards * reward_term + teacher_term if in_loss else 0.0
        for reward_term, teacher_term, in_loss in zip(earned, taught, sequence.loss_mask, strict=True)
    )


def with_penalty(
    batch: TrainBatch,
    references: Sequence[Sequence[float | None]],
    present: Sequence[Sequence[float]],
    coefficient: float,
) -> TrainBatch:
    """The batch with the KL penalty in its advantages, and the metric `kl/reference`.

    `references` and `present`: the logprobs by token at temperature 1 under the reference and under the
    present weights, whatever weights and temperature sampled the tokens.
    """
    divergences = [
        sequence.trained_only(divergence(policy, reference))
        for sequence, policy, reference in zip(batch.sequences, present, references, strict=True)
    ]
    penalised = tuple(
        replace(sequence, advantages=_add_terms(sequence, terms))
        for sequence, terms in zip(batch.sequences, penalties(divergences, coefficient), strict=True)
    )
    weights = [
        importance_weights(
            sequence.trained_only(policy), sequence.trained_only(sequence.logprobs), _KL_WEIGHT_CAP
        )
        for sequence, policy in zip(batch.sequences, present, strict=True)
    ]
    metrics = {**batch.metrics, "kl/reference": weighted_mean(divergences, weights)}
    return replace(batch, sequences=penalised, metrics=metrics, present=tuple(map(tuple, present)))


def _add_terms(sequence: TrainSequence, terms: Sequence[float]) -> tuple[float, ...]:
    """The advantages plus `terms`, which has a value for each trained token."""
    remaining = iter(terms)
    return tuple(
        advantage + next(remaining) if in_loss else 0.0
        for advantage, in_loss in zip(sequence.advantages, sequence.loss_mask, strict=True)
    )


def penalties(divergences: Sequence[Sequence[float]], coefficient: float) -> list[list[float]]:
    """The term for each token's advantage: coefficient · (mean - its divergence)."""
    values = [value for sequence in divergences for value in sequence]
    mean = statistics.fmean(values) if values else 0.0
    return [[coefficient * (mean - value) for value in sequence] for sequence in divergences]


def weighted_mean(values: Sequence[Sequence[float]], weights: Sequence[Sequence[float]]) -> float:
    """The mean over all tokens by importance weights; 0 without tokens."""
    pairs = [
        pair
        for row, row_weights in zip(values, weights, strict=True)
        for pair in zip(row, row_weights, strict=True)
    ]
    total = sum(weight for _, weight in pairs)
    return sum(value * weight for value, weight in pairs) / total if total else 0.0


def divergence(policy: Sequence[float], reference: Sequence[float | None]) -> list[float]:
    """log policy - log reference; 0 where the reference has no logprob."""
    return [
        0.0 if ref_logprob is None else logprob - ref_logprob
        for logprob, ref_logprob in zip(policy, reference, strict=True)
    ]


def teacher_terms(
    policy: Sequence[float], teacher: Sequence[float | None], coefficient: float
) -> list[float]:
    """The advantage of each token under on-policy distillation."""
    return [-coefficient * value for value in divergence(policy, teacher)]
