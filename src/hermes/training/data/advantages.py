"""Advantages: how much better a rollout was than the others of its group, or than a critic's values. Pure.

A rollout that was split into several sequences counts once in every mean. A group whose rollouts all have the
same score has no signal: it gets no advantages, and the caller counts it.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from enum import StrEnum

_SAME = 1e-9


class Baseline(StrEnum):
    """The value that a score is compared with, and its divisor."""

    MEAN = "mean"
    """score - mean of the group. The default: it favours no level of difficulty."""
    STD = "std"
    """The same, over the group's standard deviation."""
    BATCH_STD = "batch-std"
    """The same, over the standard deviation of all rollouts of the batch."""
    LEAVE_ONE_OUT = "leave-one-out"
    """score - mean of the others of the group."""


def has_signal(scores: Sequence[float]) -> bool:
    """Whether some rollout was better than another."""
    return len(scores) > 1 and max(scores) - min(scores) > _SAME


def advantages(groups: Sequence[Sequence[float]], baseline: Baseline) -> list[list[float] | None]:
    """For each group of scores its advantages; None for a group without signal."""
    std = _std([score for scores in groups for score in scores])
    return [_group_advantages(scores, baseline, std) if has_signal(scores) else None for scores in groups]


def generalised_advantages(values: Sequence[float], reward: float, decay: float) -> list[float]:
    """The generalised advantage estimate (GAE) of each token, with a discount of 1 and `decay` as its λ.

    `values`: the critic's, before each token; the reward comes after the last one.
    """
    estimates: list[float] = []
    following, estimate = reward, 0.0
    for value in reversed(values):
        estimate = following - value + decay * estimate
        estimates.append(estimate)
        following = value
    return estimates[::-1]


def _group_advantages(scores: Sequence[float], baseline: Baseline, batch_std: float) -> list[float]:
    mean = statistics.fmean(scores)
    centred = [score - mean for score in scores]
    if baseline is Baseline.STD:
        return [value / _std(scores) for value in centred]
    if baseline is Baseline.BATCH_STD:
        return [value / batch_std for value in centred]
    if baseline is Baseline.LEAVE_ONE_OUT:
        return [value * len(scores) / (len(scores) - 1) for value in centred]
    return centred


def _std(scores: Sequence[float]) -> float:
    return statistics.pstdev(scores) if len(scores) > 1 else 0.0
