"""The metrics of a training step, and the health metrics that show whether a run works. Pure.

`train/loss` of a group-relative loss is about 0 by construction and does not measure progress. `reward/mean`
does, as long as `health/*` is normal.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hermes.core.sequence import RolloutGroup, TrainSequence

_TRUNCATED = ("max_tokens", "truncated", "context_full", "length")


@dataclass(frozen=True, slots=True)
class TokenStats:
    """The trained tokens of a batch, one value each."""

    sampler: list[float] = field(default_factory=list)
    """Logprobs as stated by the environment."""
    behaviour: list[float] = field(default_factory=list)
    """The same, except that a sequence of another temperature has the trainer's, as in the loss."""
    trainer: list[float] = field(default_factory=list)
    """Logprobs before the update."""
    advantages: list[float] = field(default_factory=list)


def token_metrics(tokens: TokenStats) -> dict[str, float]:
    """The metrics of the first pass over the data."""
    if not tokens.trainer:
        return {}
    drifts = [old - new for new, old in zip(tokens.trainer, tokens.sampler, strict=True)]
    gaps = [new - old for new, old in zip(tokens.trainer, tokens.behaviour, strict=True)]
    ratios = [_ratio(gap) for gap in gaps]
    return {
        "logprobs/mean": statistics.fmean(tokens.sampler),
        "logprobs/mean_training": statistics.fmean(tokens.trainer),
        "logprobs/diff": statistics.fmean(drifts),
        "advantages/mean": statistics.fmean(tokens.advantages),
        "advantages/std": statistics.pstdev(tokens.advantages),
        "health/entropy": -statistics.fmean(tokens.trainer),
        "health/logprob_gap": statistics.fmean(map(abs, drifts)),
        "health/ratio_max": max(ratios),
        "health/ratio_min": min(ratios),
        "health/k3": statistics.fmean(ratio - gap - 1 for ratio, gap in zip(ratios, gaps, strict=True)),
    }


def clip_fraction(trainer: Sequence[float], sent: Sequence[float], bounds: tuple[float, float]) -> float:
    """The share of tokens whose ratio, as the loss has it, is beyond its bounds."""
    ratios = [_ratio(new - old) for new, old in zip(trainer, sent, strict=True)]
    return sum(not bounds[0] <= ratio <= bounds[1] for ratio in ratios) / max(1, len(ratios))


def _ratio(gap: float) -> float:
    return math.exp(max(-50.0, min(gap, 50.0)))


def group_metrics(groups: Sequence[RolloutGroup], signals: int) -> dict[str, float]:
    """Metrics of the served groups; `signals` of them have rollouts or tokens better than others."""
    scores = [score for group in groups for score in group.scores]
    sequences = [sequence for group in groups for sequence in group.sequences]
    metrics = {
        "data/groups": float(len(groups)),
        "data/rollouts": float(len(scores)),
        "data/sequences": float(len(sequences)),
        "health/group_signal": signals / len(groups) if groups else 0.0,
        "health/zero_variance_groups": float(len(groups) - signals),
    }
    if scores:
        metrics |= {"reward/mean": statistics.fmean(scores), "reward/std": statistics.pstdev(scores)}
        metrics |= {"reward/min": min(scores), "reward/max": max(scores)}
        metrics |= _quantiles(scores)
        metrics["reward/positive"] = sum(score > 0 for score in scores) / len(scores)
    if sequences:
        metrics["data/sequence_tokens"] = statistics.fmean(len(sequence.tokens) for sequence in sequences)
        distinct = sum(len({tuple(sequence.tokens) for sequence in group.sequences}) for group in groups)
        metrics["health/duplicates"] = 1 - distinct / len(sequences)
    behaviour = _behaviour_metrics(sequences) | _forbidden_metrics(groups) | _success_metrics(groups)
    parts = _part_metrics(groups) | _environment_metrics(groups)
    return metrics | _true_reward_metrics(groups) | behaviour | parts


def _quantiles(scores: Sequence[float]) -> dict[str, float]:
    """The rewards at a tenth, at half and at nine tenths of the sorted scores, interpolated."""
    deciles = statistics.quantiles(scores, n=10, method="inclusive") if len(scores) > 1 else [scores[0]] * 9
    return {"reward/p10": deciles[0], "reward/p50": deciles[4], "reward/p90": deciles[8]}


def _environment_metrics(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """The reward of each environment, in a batch of several."""
    scores: dict[str, list[float]] = {}
    for group in groups:
        if group.environment is not None and group.sequences:
            scores.setdefault(group.environment, []).extend(group.scores)
    if len(scores) < 2:
        return {}
    rewards = {f"env/{name}/reward": statistics.fmean(values) for name, values in scores.items()}
    return rewards | {f"env/{name}/rollouts": float(len(values)) for name, values in scores.items()}


def _true_reward_metrics(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """The measure that a learned reward stands for, beside it, where the environment measures it."""
    values = [
        rollout.true_reward
        for group in groups
        for rollout in {sequence.rollout.id: sequence.rollout for sequence in group.sequences}.values()
        if rollout.true_reward is not None
    ]
    return {"reward/true": statistics.fmean(values)} if values else {}


def _part_metrics(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """The mean of each named signal behind the scores, over the rollouts that have it."""
    values: dict[str, list[float]] = {}
    for group in groups:
        for rollout in {sequence.rollout.id: sequence.rollout for sequence in group.sequences}.values():
            for name, value in rollout.parts.items():
                values.setdefault(name, []).append(value)
    return {f"reward_part/{name}": statistics.fmean(numbers) for name, numbers in sorted(values.items())}


def _forbidden_metrics(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """The share of rollouts that name a forbidden path, where the environment looks for them."""
    touched = [
        rollout.forbidden_paths > 0
        for group in groups
        for rollout in {sequence.rollout.id: sequence.rollout for sequence in group.sequences}.values()
        if rollout.forbidden_paths is not None
    ]
    return {"health/forbidden_paths": statistics.fmean(touched)} if touched else {}


def _success_metrics(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """The share of strict successes, of all and by kind of task, where the environment reports them."""
    verdicts: dict[str, list[bool]] = {}
    for group in groups:
        for rollout in {sequence.rollout.id: sequence.rollout for sequence in group.sequences}.values():
            for name in ("mean", rollout.kind):
                if name is not None and rollout.success is not None:
                    verdicts.setdefault(name, []).append(rollout.success)
    return {f"success/{name}": statistics.fmean(values) for name, values in sorted(verdicts.items())}


def staleness_metrics(sequences: Sequence[TrainSequence], step: int, dropped: int) -> dict[str, float]:
    """How many steps the sampler was behind; without sequences of weights that this run does not have."""
    ages = [age for sequence in sequences if (age := sequence.staleness(step)) is not None and age >= 0]
    metrics = {"health/stale_dropped": float(dropped)}
    if ages:
        metrics |= {"health/staleness": statistics.fmean(ages), "health/staleness_max": float(max(ages))}
    return metrics


def dropped_metrics(
    groups: Sequence[RolloutGroup],
    judged: Iterable[tuple[TrainSequence, str | None]],
    names: Mapping[str, str],
) -> dict[str, float]:
    """How often histories branched, and the sampled tokens that are not trained on, by reason.

    `judged`: sequences, and why each is left out. `names`: of those reasons.
    """
    rollouts = [
        rollout
        for group in groups
        for rollout in {sequence.rollout.id: sequence.rollout for sequence in group.sequences}.values()
    ]
    dropped: Counter[str] = Counter()
    for rollout in rollouts:
        dropped.update(rollout.dropped_tokens)
    for sequence, reason in judged:
        if reason is not None:
            dropped[names[reason]] += sequence.trained_tokens
    sequences = sum(len(group.sequences) for group in groups)
    metrics = {"tokens/dropped": float(dropped.total())}
    if rollouts:
        metrics["sequences/branches"] = sequences / len(rollouts) - 1
    return metrics | {f"tokens/dropped/{reason}": float(count) for reason, count in sorted(dropped.items())}


def _behaviour_metrics(sequences: Sequence[TrainSequence]) -> dict[str, float]:
    """How the rollouts ended, where the environment reports it."""
    reasons = Counter(
        str(sequence.rollout.stop_reason)
        for sequence in sequences
        if sequence.rollout.stop_reason is not None
    )
    metrics: dict[str, float] = {}
    if reasons:
        total = reasons.total()
        metrics = {f"stop/{reason}": count / total for reason, count in sorted(reasons.items())}
        metrics["health/truncated"] = sum(reasons[reason] for reason in _TRUNCATED) / total
    calls = sum(sequence.rollout.tool_calls for sequence in sequences)
    if calls:
        metrics["health/tool_errors"] = sum(sequence.rollout.tool_errors for sequence in sequences) / calls
    return metrics
