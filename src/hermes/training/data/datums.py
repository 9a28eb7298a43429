"""Token sequences as the data of the Tinker API: position i of the input predicts the token at i + 1. Pure.

Only the SDK's public types are used. Losses are sums over tokens: a caller that wants a mean scales the
weights or advantages it passes in.

A correction by importance sampling is for the mismatch between sampler and trainer: the two never agree to
the last bit, and the sampler may be some steps behind. The correction weights each token by min(cap, π/μ): π
the trainer's probability of it before the update, μ the sampler's. For importance sampling that is the loss
`cispo` with bounds 0 and cap and no further pass over the data: its gradient is min(π/μ, cap)·A·∇log π. For
`ppo`, which must clip around π and not around μ, the weight goes into the advantage and π takes μ's place,
after one forward pass.

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
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import tinker


def sft_datum(tokens: Sequence[int], weights: Sequence[float]) -> tinker.Datum:
    """For cross_entropy; `weights[i]` is that of predicting `tokens[i]`, so the first never counts."""
    return _datum(tokens, {"weights": weights})


def rl_datum(
    tokens: Sequence[int],
    logprobs: Sequence[float],
    advantages: Sequence[float],
    ratio_mask: Sequence[bool] | None = None,
) -> tinker.Datum:
    """For the RL losses; logprobs and advantages are by token, 0 where the token was not sampled.

    `ratio_mask`: for gspo, the tokens whose mean ratio is that of the sequence."""
    inputs: dict[str, Sequence[float]] = {"logprobs": logprobs, "advantages": advantages}
    return _datum(tokens, inputs if ratio_mask is None else {**inputs, "sequence_ratio_mask": ratio_mask})


def target_datum(tokens: Sequence[int], target: int, weights: Sequence[float]) -> tinker.Datum:
    """For cross_entropy of the same token in the place of each token: a read-out at every position.

    `weights[i]` is that of predicting `target` in the place of `tokens[i]`.
    """
    return _datum(tokens, {"weights": weights}, [target] * (len(tokens) - 1))


def _datum(
    tokens: Sequence[int], inputs: Mapping[str, Sequence[float]], predicted: Sequence[int] | None = None
) -> tinker.Datum:
    """`predicted`: what each position is to predict; None: the token that follows it."""
    from tinker import Datum, ModelInput, TensorData

    size = len(tokens) - 1
    ids = list(tokens[1:] if predicted is None else predicted)
    targets = TensorData(data=ids, dtype="int64", shape=[size])
    floats = {
        name: TensorData(data=[float(value) for value in values[1:]], dtype="float32", shape=[size])
        for name, values in inputs.items()
    }
    return Datum(ModelInput.from_ints(list(tokens[:-1])), {"target_tokens": targets, **floats})


def token_logprobs(output: tinker.ForwardBackwardOutput) -> list[list[float]]:
    """The logprobs of each datum's tokens, with a 0 for the first, which nothing predicts."""
    return [
        [0.0, *(float(logprob) for logprob in record["logprobs"].tolist())]
        for record in output.loss_fn_outputs
    ]


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
