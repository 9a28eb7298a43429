"""KL penalty towards a reference and distillation from a teacher, as token advantages. Pure.

The estimate of a token's divergence is log μ - log ref, of which the mean over sampled tokens is KL(μ‖ref).
As a penalty it is centred over the batch, so that it moves probability without pushing every token down.
Distillation is the same towards a teacher and not centred: its reverse KL is the whole objective.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence


def penalties(divergences: Sequence[Sequence[float]], coefficient: float) -> list[list[float]]:
    """The term for each token's advantage: coefficient · (mean - its divergence)."""
    values = [value for sequence in divergences for value in sequence]
    mean = statistics.fmean(values) if values else 0.0
    return [[coefficient * (mean - value) for value in sequence] for sequence in divergences]


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
