"""What a loop's own metrics must show.

A check returns what it saw, or raises AssertionError with what is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

Metrics = Sequence[Mapping[str, Any]]
Check = Callable[[Metrics], str]


def learned(name: str) -> Check:
    """The loss is finite and lower at the end."""

    def check(metrics: Metrics) -> str:
        losses = series(metrics, name)
        assert losses[-1] < losses[0], f"{name} did not fall: {losses}"
        return f"loss {losses[0]:.3f} to {losses[-1]:.3f}"

    return check


def moved(metrics: Metrics) -> str:
    norms = series(metrics, "grad_norm")
    assert max(norms) > 0, "no group had any signal"
    return f"gradient norm up to {max(norms):.1f}"


def on_policy(metrics: Metrics) -> str:
    """What was sampled has the same logprobs in the trainer, whose weights the sampler has."""
    gaps = [abs(gap) for gap in series(metrics, "optim/kl_sample_train_v1")]
    squares = series(metrics, "optim/kl_sample_train_v2")
    assert max(gaps) < 1e-3 and max(squares) < 1e-5, f"sampler and trainer differ: {gaps} {squares}"
    return f"{moved(metrics)}, sampler/trainer gap {max(gaps):.0e}"


def stale_by(most: int) -> Check:
    def check(metrics: Metrics) -> str:
        ages = [
            trained - sampled
            for trained, sampled in zip(
                series(metrics, "training_client/step"),
                series(metrics, "sampling_client/step_min"),
                strict=True,
            )
        ]
        assert max(ages) <= most, f"trained on samples {max(ages)} steps old"
        return f"{moved(metrics)}, samples at most {max(ages):.0f} steps old"

    return check


def penalised(metrics: Metrics) -> str:
    distances = series(metrics, "kl_policy_base")
    assert abs(distances[0]) < 1e-4, f"untrained, and {distances[0]} from the base model"
    assert abs(distances[-1]) > 1e-4, f"trained, and still at the base model: {distances}"
    return f"{on_policy(metrics)}, distance from the base {distances[0]:.0e} to {distances[-1]:.1e}"


def preferred(metrics: Metrics) -> str:
    losses, accuracies = series(metrics, "dpo_loss"), series(metrics, "accuracy")
    assert abs(losses[0] - math.log(2)) < 1e-4, f"policy and reference differ at the start: {losses[0]}"
    assert losses[-1] < losses[0] and accuracies[-1] == 1, f"{losses} {accuracies}"
    return f"loss {losses[0]:.4f} (ln 2) to {losses[-1]:.3f}, accuracy {accuracies[-1]:.0%}"


def continued(uninterrupted: Metrics, resumed: Metrics) -> str:
    """After a resume the same updates give the same losses."""
    before = series(uninterrupted, "train_mean_nll")
    after = series(resumed, "train_mean_nll")[: len(before)]
    gaps = [abs(one - other) for one, other in zip(before, after, strict=True)]
    assert max(gaps) < 1e-5, f"losses differ from the uninterrupted run's: {before} {after}"
    return f"{len(gaps)} losses as in the uninterrupted run (difference {max(gaps):.0e})"


def series(metrics: Metrics, name: str) -> list[float]:
    values = [float(one[name]) for one in metrics]
    assert all(math.isfinite(value) for value in values), f"{name} is not finite: {values}"
    return values
