"""Keeping near a reference, and near a teacher: both are terms of the advantage of each token. Pure.

The estimate of a token's divergence is log μ - log ref, of which the mean over sampled tokens is KL(μ‖ref).
As a penalty it is centred over the batch, so that it moves probability without pushing every token down.
Distillation is the same towards a teacher and not centred: its reverse KL is the whole objective.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def penalties(divergences: Sequence[Sequence[float]], coefficient: float) -> list[list[float]]:
    """What each token's advantage gets: coefficient · (mean - its own)."""
    every = [value for sequence in divergences for value in sequence]
    mean = statistics.fmean(every) if every else 0.0
    return [[coefficient * (mean - value) for value in sequence] for sequence in divergences]


def divergence(policy: Sequence[float], reference: Sequence[float | None]) -> list[float]:
    """log policy - log reference; 0 where the reference has nothing to say."""
    return [0.0 if other is None else own - other for own, other in zip(policy, reference, strict=True)]


def teacher_terms(
    policy: Sequence[float], teacher: Sequence[float | None], coefficient: float
) -> list[float]:
    """The advantage of each token under on-policy distillation."""
    return [-coefficient * value for value in divergence(policy, teacher)]
