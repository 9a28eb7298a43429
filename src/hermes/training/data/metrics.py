"""The numbers of a step: the names of the predecessor, and what tells a healthy run from a sick one. Pure.

`train/loss` of a group-relative loss is about 0 by construction; it says nothing about progress. Look at
`reward/mean`, and at `health/*` for whether the reward can be trusted to mean something.
"""

from __future__ import annotations

import math
import statistics
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from hermes.training.data.groups import Rollout, RolloutGroup

_TRUNCATED = ("max_tokens", "truncated", "context_full", "length")


@dataclass(frozen=True, slots=True)
class TokenStats:
    """The trained tokens of a batch, one value each."""

    sampler: list[float] = field(default_factory=list)
    """Logprobs as stated by the environment."""
    behaviour: list[float] = field(default_factory=list)
    """The same, but for those of another temperature: there the trainer's own, as the loss has them."""
    trainer: list[float] = field(default_factory=list)
    """Logprobs before the update."""
    advantages: list[float] = field(default_factory=list)


def token_metrics(tokens: TokenStats) -> dict[str, float]:
    """What the first pass over the data tells."""
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
    """What the groups say of themselves; `signals` of them had rollouts or tokens better than others."""
    scores = [score for group in groups for score in group.scores]
    rollouts = [rollout for group in groups for rollout in group.rollouts]
    refused = sum((group.refused for group in groups), Counter[str]())
    found = {
        "data/groups": float(len(groups)),
        "data/rollouts": float(len(scores)),
        "data/sequences": float(len(rollouts)),
        "data/refused": float(refused.total()),
        "data/trained_tokens": float(sum(rollout.trained_tokens for rollout in rollouts)),
        "health/group_signal": signals / len(groups) if groups else 0.0,
        "health/zero_variance_groups": float(len(groups) - signals),
    }
    if scores:
        found |= {"reward/mean": statistics.fmean(scores), "reward/std": statistics.pstdev(scores)}
        found |= {"reward/min": min(scores), "reward/max": max(scores)}
        found["reward/positive"] = sum(score > 0 for score in scores) / len(scores)
    if rollouts:
        found["data/sequence_tokens"] = statistics.fmean(len(rollout.tokens) for rollout in rollouts)
    return found | _behaviour(rollouts) | _successes(groups)


def _successes(groups: Sequence[RolloutGroup]) -> dict[str, float]:
    """The share of strict successes, of all and by kind of task, where their environment tells."""
    found: dict[str, list[bool]] = {}
    for group in groups:
        for rollout in {one.key: one for one in group.rollouts}.values():
            for name in ("mean", rollout.kind):
                if name is not None and rollout.success is not None:
                    found.setdefault(name, []).append(rollout.success)
    return {f"success/{name}": statistics.fmean(values) for name, values in sorted(found.items())}


def staleness_metrics(rollouts: Sequence[Rollout], step: int, dropped: int) -> dict[str, float]:
    """How far behind the sampler was, in steps."""
    ages = [step - min(rollout.versions) for rollout in rollouts if rollout.versions]
    found = {"health/stale_dropped": float(dropped)}
    if ages:
        found |= {"health/staleness": statistics.fmean(ages), "health/staleness_max": float(max(ages))}
    return found


def _behaviour(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """How the rollouts ended, where their environment tells."""
    told = [rollout for rollout in rollouts if rollout.stop_reason is not None]
    found: dict[str, float] = {}
    if told:
        reasons = Counter(str(rollout.stop_reason) for rollout in told)
        found = {f"stop/{reason}": count / len(told) for reason, count in sorted(reasons.items())}
        found["health/truncated"] = sum(reasons[reason] for reason in _TRUNCATED) / len(told)
    calls = sum(rollout.tool_calls for rollout in rollouts)
    if calls:
        found["health/tool_errors"] = sum(rollout.tool_errors for rollout in rollouts) / calls
    return found
