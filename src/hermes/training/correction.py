"""Sampler and trainer never agree to the last bit, and the sampler may be some steps behind. Pure.

The token-level correction weighs each token by min(cap, π/μ): π the trainer's probability of it before the
update, μ the sampler's. For importance sampling that is the loss `cispo` with bounds 0 and cap and no further
pass over the data: its gradient is min(π/μ, cap)·A·∇log π. For `ppo`, which must clip around π and not
around μ, the weight goes into the advantage and π takes μ's place, after one forward pass.

A sampler at a temperature other than 1 states logprobs of another distribution than the trainer's. There is
no ratio between the two worth having: π takes μ's place, with weight 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

IMPORTANCE_SAMPLING = "importance_sampling"
PPO = "ppo"
CISPO = "cispo"
LOSSES = (IMPORTANCE_SAMPLING, PPO, CISPO)


class Loss(NamedTuple):
    """What the engine is asked for."""

    name: str
    config: Mapping[str, float]


def engine_loss(name: str, cap: float | None, clip: tuple[float, float] | None) -> Loss:
    """The loss with its correction (`cap` None: none) and the bounds of its ratio, where it has some."""
    if name == IMPORTANCE_SAMPLING and cap is not None:
        return Loss(CISPO, {"clip_low_threshold": 0.0, "clip_high_threshold": cap})
    if name == IMPORTANCE_SAMPLING or clip is None:
        return Loss(name, {})
    return Loss(name, {"clip_low_threshold": clip[0], "clip_high_threshold": clip[1]})


def weights(trainer: Sequence[float], sampler: Sequence[float], cap: float) -> list[float]:
    """min(cap, π/μ) for each token."""
    return [min(cap, math.exp(min(new - old, 50.0))) for new, old in zip(trainer, sampler, strict=True)]


def surrogate(
    trainer: Sequence[float], sampler: Sequence[float], advantages: Sequence[float], cap: float
) -> float:
    """The capped importance-sampling loss of tokens: the number that goes with the gradient above."""
    ratios = weights(trainer, sampler, cap)
    return -sum(ratio * value for ratio, value in zip(ratios, advantages, strict=True))
