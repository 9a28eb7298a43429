"""Splits a training call over replicas, by shared prefixes and cost, and joins what they return. Pure.

The split depends on the data and on the number of parts only, not on who is alive: a part that is computed
again after a failure, or by another replica, is the same part. Gradients are summed in the order of the
parts, so that the sum of the same parts has the same bits whoever computed them.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np

from hermes.engine.attention.packing import sort_sequences
from hermes.engine.types import Datum, Floats, TrainOutput

_SLACK = 0.25
"""How far from an equal share a cut may lie to keep a shared prefix together, as part of that share."""


def split_by_prefix(data: Sequence[Datum], parts: int) -> list[list[int]]:
    """Indices of the data of each part, at most `parts` of them, none empty.

    Sequences with a common prefix are neighbours; a cut costs the tokens of the prefix that it divides.
    """
    order, shared = sort_sequences([datum.tokens for datum in data])
    if not order:
        return []
    costs = np.array([len(data[index].tokens) for index in order]) - np.array(shared)
    ends = np.cumsum(costs)
    share = float(ends[-1]) / parts
    cuts = [0]
    for number in range(1, parts):
        cut = _best_cut(ends, shared, number * share, share)
        if cuts[-1] < cut < len(order):
            cuts.append(cut)
    cuts.append(len(order))
    return [order[low:high] for low, high in pairwise(cuts)]


def _best_cut(ends: np.ndarray, shared: Sequence[int], target: float, share: float) -> int:  # type: ignore[type-arg]
    """The position before which to cut: close to the target, where little is shared."""
    low = int(np.searchsorted(ends, target - _SLACK * share))
    high = int(np.searchsorted(ends, target + _SLACK * share))
    candidates = range(max(1, low), min(len(ends) - 1, high) + 1)
    nearest = max(1, min(len(ends) - 1, int(np.searchsorted(ends, target))))
    return min(
        candidates or [nearest],
        key=lambda position: (
            (shared[position] + abs(float(ends[position - 1]) - target), position)
            if position < len(shared)
            else (float("inf"), position)
        ),
    )


def sum_gradients(gradients: Sequence[Floats]) -> Floats:
    """In the order of the parts."""
    total = gradients[0].copy()
    for gradient in gradients[1:]:
        total += gradient
    return total


def join_outputs(parts: Sequence[Sequence[int]], outputs: Sequence[TrainOutput], count: int) -> TrainOutput:
    """One output, as if one engine had computed all data."""
    logprobs: list[Floats] = [np.zeros(0, np.float32)] * count
    for indices, output in zip(parts, outputs, strict=True):
        for index, values in zip(indices, output.logprobs, strict=True):
            logprobs[index] = values
    trained = sum(output.trained_tokens for output in outputs)
    names = list(dict.fromkeys(name for output in outputs for name in output.metrics))
    metrics = {name: _join_metric(name, outputs, trained) for name in names}
    return TrainOutput(tuple(logprobs), metrics, trained)


def _join_metric(name: str, outputs: Sequence[TrainOutput], trained: int) -> float:
    having = [output for output in outputs if name in output.metrics]
    values = [output.metrics[name] for output in having]
    reduction = name.rpartition(":")[2]
    if reduction == "mean":
        return sum(value * out.trained_tokens for value, out in zip(values, having, strict=True)) / trained
    if reduction == "min":
        return min(values)
    return max(values) if reduction == "max" else sum(values)
