"""Each loss against numpy written apart from it, and its derivative against finite differences."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from hermes.engine.training.losses import LOSSES, losses_and_derivative, resolve, trained_mask
from hermes.engine.types import EngineUserError, Loss

Array = NDArray[np.float64]
Inputs = dict[str, Array]

# References take p, the inputs, and `held`: the p at which whatever has no gradient is evaluated.


def cross_entropy(p: Array, x: Inputs, held: Array) -> Array:
    return -p * x["weights"]


def importance_sampling(p: Array, x: Inputs, held: Array) -> Array:
    return -np.exp(p - x["logprobs"]) * x["advantages"]


def ppo(p: Array, x: Inputs, held: Array, low: Any = 0.8, high: Any = 1.2) -> Array:
    return _pessimistic(np.exp(p - x["logprobs"]), x["advantages"], low, high)


def cispo(p: Array, x: Inputs, held: Array, low: Any = 0.0, high: Any = 4.0) -> Array:
    return -np.clip(np.exp(held - x["logprobs"]), low, high) * p * x["advantages"]


def dro(p: Array, x: Inputs, held: Array, beta: float = 0.05) -> Array:
    return -(p * x["advantages"] - 0.5 * beta * (p - x["logprobs"]) ** 2)


def gspo(p: Array, x: Inputs, held: Array, low: Any = 1 - 3e-4, high: Any = 1 + 4e-4) -> Array:
    ratio = np.zeros_like(p)
    for number in np.unique(x["sequence"]):
        here = x["sequence"] == number
        counted = here & (x["sequence_ratio_mask"] != 0)
        ratio[here] = np.exp((held - x["logprobs"])[counted].mean()) if counted.any() else 1.0
    return _pessimistic(ratio * np.exp(p - held), x["advantages"], low, high)


def _pessimistic(ratio: Array, advantages: Array, low: Any, high: Any) -> Array:
    plain, clipped = ratio * advantages, np.clip(ratio, low, high) * advantages
    return -np.where(plain < clipped, plain, clipped)


REFERENCES: dict[str, Callable[..., Array]] = {
    "cross_entropy": cross_entropy,
    "importance_sampling": importance_sampling,
    "ppo": ppo,
    "cispo": cispo,
    "dro": dro,
    "gspo": gspo,
}


def draw(seed: int = 0, count: int = 60) -> tuple[Array, Inputs]:
    rng = np.random.default_rng(seed)
    q = -3.0 + rng.normal(size=count)
    mask = (rng.random(count) < 0.7).astype(float)
    mask[:10] = 0.0  # the first sequence counts nothing
    return q + 0.5 * rng.normal(size=count), {
        "weights": rng.normal(size=count),
        "logprobs": q,
        "advantages": np.where(rng.random(count) < 0.2, 0.0, rng.normal(size=count)),
        "sequence_ratio_mask": mask,
        "sequence": np.repeat(np.arange(6), count // 6).astype(float),
    }


def evaluate(name: str, p: Array, inputs: Inputs, **config: float) -> tuple[Array, Array]:
    loss = resolve(Loss(name, config))
    tensors = {key: torch.as_tensor(values) for key, values in inputs.items()}
    found = losses_and_derivative(loss.kind, torch.as_tensor(p), tensors, loss.config)
    return found[0].numpy(), found[1].numpy()


def test_every_named_loss_has_a_reference() -> None:
    assert set(LOSSES) == set(REFERENCES)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", range(3))
def test_a_loss_has_the_value_of_its_numpy_reference(name: str, seed: int) -> None:
    p, inputs = draw(seed)
    np.testing.assert_allclose(evaluate(name, p, inputs)[0], REFERENCES[name](p, inputs, p), rtol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", range(3))
def test_a_derivative_equals_finite_differences_of_the_reference(name: str, seed: int) -> None:
    p, inputs = draw(seed)
    step = 1e-6
    ahead, behind = (REFERENCES[name](p + sign * step, inputs, p) for sign in (1, -1))
    np.testing.assert_allclose(
        evaluate(name, p, inputs)[1], (ahead - behind) / (2 * step), rtol=1e-6, atol=1e-8
    )


CONFIGS: list[tuple[str, dict[str, float], dict[str, float]]] = [
    ("ppo", {"clip_low_threshold": 0.5, "clip_high_threshold": 1.1}, {"low": 0.5, "high": 1.1}),
    ("cispo", {"clip_low_threshold": 0.9, "clip_high_threshold": 1.3}, {"low": 0.9, "high": 1.3}),
    ("gspo", {"clip_low_threshold": 0.7, "clip_high_threshold": 1.4}, {"low": 0.7, "high": 1.4}),
    ("dro", {"beta": 0.7}, {"beta": 0.7}),
]


@pytest.mark.parametrize(("name", "config", "arguments"), CONFIGS)
def test_settings_reach_the_loss(name: str, config: dict[str, float], arguments: dict[str, Any]) -> None:
    p, inputs = draw()
    expected = REFERENCES[name](p, inputs, p, **arguments)
    np.testing.assert_allclose(evaluate(name, p, inputs, **config)[0], expected, rtol=1e-12)
    assert not np.allclose(expected, REFERENCES[name](p, inputs, p))


@pytest.mark.parametrize("name", ["ppo", "cispo", "gspo"])
def test_thresholds_per_token_override_the_configuration(name: str) -> None:
    p, inputs = draw()
    rng = np.random.default_rng(5)
    low, high = rng.uniform(0.3, 0.9, len(p)), rng.uniform(1.0, 1.5, len(p))
    given = {**inputs, "clip_low_threshold": low, "clip_high_threshold": high}
    expected = REFERENCES[name](p, inputs, p, low=low, high=high)
    np.testing.assert_allclose(evaluate(name, p, given)[0], expected, rtol=1e-12)


@pytest.mark.parametrize("name", LOSSES)
def test_a_token_that_is_not_called_trained_has_no_gradient(name: str) -> None:
    p, inputs = draw()
    inputs["weights"][::3] = 0.0
    mask = trained_mask(name, inputs)
    assert (evaluate(name, p, inputs)[1][~mask] == 0).all()
    assert mask.all() if name == "dro" else not mask.all()


def test_losses_are_linear_in_what_scales_them() -> None:
    p, inputs = draw()
    for name in ("cross_entropy", "importance_sampling", "ppo", "cispo", "gspo"):
        doubled = {**inputs, "weights": 2 * inputs["weights"], "advantages": 2 * inputs["advantages"]}
        np.testing.assert_allclose(evaluate(name, p, doubled)[0], 2 * evaluate(name, p, inputs)[0])


REFUSED = [
    (Loss("stable_reinforce"), "formula is not public"),
    (Loss("hinge"), "no loss 'hinge'"),
    (Loss("ppo", {"beta": 1.0}), "no setting 'beta'"),
    (Loss("cross_entropy", {"clip_low_threshold": 1.0}), "no setting"),
    (Loss("dro", {"beta": float("nan")}), "finite"),
    (Loss("dro", {"beta": "much"}), "finite"),
    (Loss("dro", {"beta": -1.0}), r"settings .* invalid"),
    (Loss("ppo", {"clip_low_threshold": 1.5}), r"settings .* invalid"),
]


@pytest.mark.parametrize(("loss", "reason"), REFUSED)
def test_an_invalid_loss_is_rejected_with_the_reason(loss: Loss, reason: str) -> None:
    with pytest.raises(EngineUserError, match=reason):
        resolve(loss)
