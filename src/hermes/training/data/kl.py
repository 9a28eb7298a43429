"""KL penalty towards a reference and distillation from a teacher, as token advantages. Pure.

The estimate of a token's divergence is log π - log ref, both at temperature 1 and π of the present weights,
whatever weights and temperature sampled the token. The mean over tokens, each with the importance weight π/μ
for the sampler's μ, estimates KL(π‖ref) in the contexts that were visited. As a penalty the divergence is
centred over the batch, so that it moves probability without pushing every token down.
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
