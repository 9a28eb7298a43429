"""Token sequences as the data of the Tinker API: position i of the input predicts the token at i + 1. Pure.

Only the SDK's public types are used. Losses are sums over tokens: a caller that wants a mean scales the
weights or advantages it passes in.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

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
