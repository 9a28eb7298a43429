"""Importance-sampling correction for the mismatch between sampler and trainer. Pure.

The two never agree to the last bit, and the sampler may be some steps behind. The correction weights each
token by min(cap, π/μ): π the trainer's probability of it before the update, μ the sampler's. For importance
sampling that is the loss `cispo` with bounds 0 and cap and no further pass over the data: its gradient is
min(π/μ, cap)·A·∇log π. For `ppo`, which must clip around π and not around μ, the weight goes into the
advantage and π takes μ's place, after one forward pass.

`gspo` has one ratio a sequence, exp of the mean of log π/μ over its trained tokens, and bounds so tight that
the mismatch alone would clip it: there too the weight, which is the sequence's, goes into the advantage, and
π takes μ's place, of fresh rollouts as well.

A sampler at a temperature other than 1 reports logprobs of another distribution than the trainer's. The ratio
of the two is meaningless: π takes μ's place, with weight 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

IMPORTANCE_SAMPLING = "importance_sampling"
PPO = "ppo"
CISPO = "cispo"
GSPO = "gspo"
LOSSES = (IMPORTANCE_SAMPLING, PPO, CISPO, GSPO)
_ENGINE_BOUNDS: Mapping[str, tuple[float, float]] = MappingProxyType(
    {PPO: (0.8, 1.2), CISPO: (0.0, 4.0), GSPO: (1.0 - 3e-4, 1.0 + 4e-4)}
)
"""The engine's bounds for a loss that is requested without any."""


class LossSpec(NamedTuple):
    """The loss function of a forward-backward request."""

    name: str
    config: Mapping[str, float]


def engine_loss(name: str, cap: float | None, clip: tuple[float, float] | None) -> LossSpec:
    """The loss with its correction (`cap` None: none) and the bounds of its ratio, if it has any.

    `cispo` clips the correction itself: without `clip` its upper bound is the cap.
    """
    bounds = None if name == IMPORTANCE_SAMPLING else clip
    if bounds is None and cap is not None and name in (IMPORTANCE_SAMPLING, CISPO):
        name, bounds = CISPO, (0.0, cap)
    return LossSpec(
        name, {"clip_low_threshold": bounds[0], "clip_high_threshold": bounds[1]} if bounds else {}
    )


def bounds_of(loss: LossSpec) -> tuple[float, float] | None:
    """The bounds outside of which the loss clips the ratio; None: it does not clip."""
    if loss.config:
        return loss.config["clip_low_threshold"], loss.config["clip_high_threshold"]
    return _ENGINE_BOUNDS.get(loss.name)


def importance_weights(trainer: Sequence[float], sampler: Sequence[float], cap: float) -> list[float]:
    """min(cap, π/μ) for each token."""
    return [min(cap, math.exp(min(new - old, 50.0))) for new, old in zip(trainer, sampler, strict=True)]


def sequence_weight(trainer: Sequence[float], sampler: Sequence[float], cap: float) -> float:
    """min(cap, exp of the mean of log π/μ) of the trained tokens of one sequence."""
    return min(cap, sequence_ratio(trainer, sampler))


def sequence_ratio(trainer: Sequence[float], sampler: Sequence[float]) -> float:
    """The ratio of one sequence in `gspo`."""
    gaps = [new - old for new, old in zip(trainer, sampler, strict=True)]
    return math.exp(max(-50.0, min(sum(gaps) / max(1, len(gaps)), 50.0)))


def surrogate(
    trainer: Sequence[float], sampler: Sequence[float], advantages: Sequence[float], cap: float
) -> float:
    """The capped importance-sampling loss of tokens, whose gradient is the one above."""
    ratios = importance_weights(trainer, sampler, cap)
    return -sum(ratio * value for ratio, value in zip(ratios, advantages, strict=True))
