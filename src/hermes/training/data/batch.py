"""From served groups to what one update learns: which sequences, and how good each of their tokens was. Pure.

Everything that is not trained on is counted by its reason: refused sequences, stale ones, ones too long,
groups without signal. A stale or over-long rollout still counts in its group's mean, for it was as good as it
was.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hermes.core.json import JSONObject
from hermes.training.data.advantages import Baseline, advantages
from hermes.training.data.groups import Rollout, RolloutGroup, read_group
from hermes.training.data.kl import divergence, penalties, teacher_terms
from hermes.training.data.metrics import group_metrics, staleness_metrics

DEFAULT_STALENESS = 4
TOO_OLD = "sampled too many steps ago"
TOO_LONG = "longer than the longest sequence that is trained on"
_FOREIGN = "sampled with weights that this run does not have"


@dataclass(frozen=True, slots=True)
class ScoredSequence:
    """A sequence to train on."""

    rollout: Rollout
    advantages: tuple[float, ...]
    """By token; 0 where it was not sampled."""

    def stale_by(self, step: int) -> int | None:
        """How many steps ago its oldest token was sampled; None: not told."""
        return step - min(self.rollout.versions) if self.rollout.versions else None


@dataclass(frozen=True, slots=True)
class TrainBatch:
    items: tuple[ScoredSequence, ...]
    metrics: dict[str, float]
    left_out: Counter[str]
    """Reason → sequences that are not trained on, whatever their scores."""
    hopeless: bool
    """Nothing is trained on, and not for want of signal."""


@dataclass(frozen=True, slots=True)
class BatchConfig:
    baseline: Baseline = Baseline.MEAN
    max_staleness: int = DEFAULT_STALENESS
    """Steps; what was sampled longer ago is not trained on."""
    max_tokens: int = 1 << 20
    """Longest sequence."""
    distill: float = 0.0
    """Weight of the teacher's word in the advantages; 0: it has none."""
    rewards: float = 1.0
    """Weight of the scores; 0: only the teacher teaches."""


def prepare(served: Sequence[JSONObject], rules: BatchConfig, step: int) -> TrainBatch:
    """`step`: how many steps the weights have that are to be updated."""
    groups = [read_group(item) for item in served]
    refused = sum((group.refused for group in groups), Counter[str]())
    scored = [group for group in groups if group.rollouts]
    found = advantages([group.scores for group in scored], rules.baseline)
    fit: list[ScoredSequence] = []
    unfit: Counter[str] = Counter()
    taught = False
    for group, values in zip(scored, found, strict=True):
        for item in _items(group, values, rules):
            why = _why_not(item, rules, step)
            if why is None:
                fit.append(item)
            else:
                unfit[why] += 1
                taught = taught or any(item.advantages)
    items = tuple(item for item in fit if any(item.advantages))
    refused += Counter({_FOREIGN: unfit.pop(_FOREIGN, 0)})
    signals = sum(values is not None or group.told for group, values in zip(scored, found, strict=True))
    metrics = group_metrics(scored, signals)
    rollouts = [rollout for group in scored for rollout in group.rollouts]
    metrics |= staleness_metrics(rollouts, step, unfit[TOO_OLD]) | {"data/too_long": float(unfit[TOO_LONG])}
    left_out = refused + unfit
    hopeless = not items and (taught or left_out.total() >= max(1, len(fit)))
    return TrainBatch(items, metrics | {"data/refused": float(refused.total())}, left_out, hopeless)


def _why_not(item: ScoredSequence, rules: BatchConfig, step: int) -> str | None:
    age = item.stale_by(step)
    if max(item.rollout.versions, default=0) > step:
        return _FOREIGN
    if age is not None and age > rules.max_staleness:
        return TOO_OLD
    return TOO_LONG if len(item.rollout.tokens) > rules.max_tokens else None


def _items(group: RolloutGroup, values: list[float] | None, rules: BatchConfig) -> list[ScoredSequence]:
    by_key = dict(zip({rollout.key: None for rollout in group.rollouts}, values or (), strict=False))
    made = []
    for rollout in group.rollouts:
        if rollout.muted:
            continue
        earned = rollout.advantages or [by_key.get(rollout.key, 0.0)] * len(rollout.tokens)
        taught = _taught(rollout, rules.distill)
        made.append(
            ScoredSequence(
                rollout,
                tuple(
                    rules.rewards * own + more if trained else 0.0
                    for own, more, trained in zip(earned, taught, rollout.trained, strict=True)
                ),
            )
        )
    return made


def _taught(rollout: Rollout, weight: float) -> list[float]:
    if not weight or rollout.teacher is None:
        return [0.0] * len(rollout.tokens)
    return teacher_terms(rollout.logprobs, rollout.teacher, weight)


def with_penalty(
    items: Sequence[ScoredSequence], references: Sequence[Sequence[float]], coefficient: float
) -> tuple[list[ScoredSequence], float]:
    """The items with the penalty for leaving the reference in their advantages, and the divergence's mean."""
    drifts = [
        _of_trained(item, divergence(item.rollout.logprobs, reference))
        for item, reference in zip(items, references, strict=True)
    ]
    every = [value for drift in drifts for value in drift]
    changed = [
        replace(item, advantages=_added(item, terms))
        for item, terms in zip(items, penalties(drifts, coefficient), strict=True)
    ]
    return changed, sum(every) / len(every) if every else 0.0


def _of_trained(item: ScoredSequence, values: Sequence[float]) -> list[float]:
    return [value for value, trained in zip(values, item.rollout.trained, strict=True) if trained]


def _added(item: ScoredSequence, terms: Sequence[float]) -> tuple[float, ...]:
    rest = iter(terms)
    return tuple(
        own + next(rest) if trained else 0.0
        for own, trained in zip(item.advantages, item.rollout.trained, strict=True)
    )
