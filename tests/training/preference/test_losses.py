"""The losses against plain PyTorch: values, and gradients by autograd."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import pytest
import torch
import torch.nn.functional as F

from hermes.training.preference.losses import (
    CompletionLogprob,
    DpoConfig,
    DpoLoss,
    KtoConfig,
    bradley_terry,
    dpo_losses,
    kto_divergence,
    kto_losses,
    pointwise,
)


def completions(count: int, seed: int) -> list[CompletionLogprob]:
    rng = random.Random(seed)
    return [
        CompletionLogprob(-rng.uniform(1, 60), -rng.uniform(1, 60), rng.randint(1, 20)) for _ in range(count)
    ]


def autograd(
    values: Sequence[float], loss: Callable[[torch.Tensor], torch.Tensor]
) -> tuple[float, list[float]]:
    leaf = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    value = loss(leaf)
    (gradient,) = torch.autograd.grad(value, leaf)
    return float(value.detach()), gradient.tolist()


def test_bradley_terry_is_that_of_pytorch() -> None:
    rng = random.Random(0)
    scores = [rng.uniform(-4, 4) for _ in range(14)]
    margins = [rng.choice([0.0, 1 / 3, 2 / 3, 1.0]) for _ in range(7)]

    def plain(leaf: torch.Tensor) -> torch.Tensor:
        chosen, rejected = leaf[::2], leaf[1::2]
        apart = -F.logsigmoid(chosen - rejected - torch.tensor(margins, dtype=torch.float64)).mean()
        return apart + 0.01 * ((chosen + rejected) ** 2).mean()

    losses = bradley_terry(list(zip(scores[::2], scores[1::2], strict=True)), margins, 0.01)
    value, gradient = autograd(scores, plain)
    assert sum(loss.value for loss in losses) == pytest.approx(value, rel=1e-12)
    mine = [entry for loss in losses for entry in (loss.chosen_gradient, loss.rejected_gradient)]
    assert mine == pytest.approx(gradient, rel=1e-10)


def test_the_pointwise_loss_is_that_of_pytorch() -> None:
    scores, targets = [-3.0, 0.2, 4.0, 1.5], [0.0, 0.25, 1.0, 0.5]
    value, gradient = autograd(
        scores,
        lambda leaf: F.binary_cross_entropy_with_logits(leaf, torch.tensor(targets, dtype=torch.float64)),
    )
    losses = pointwise(scores, targets)
    assert sum(loss.value for loss in losses) == pytest.approx(value, rel=1e-12)
    assert [loss.gradient for loss in losses] == pytest.approx(gradient, rel=1e-10)


@pytest.mark.parametrize("loss", list(DpoLoss))
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_a_dpo_gradient_is_the_derivative_of_its_loss(loss: DpoLoss, smoothing: float) -> None:
    config = DpoConfig(loss, 0.3, smoothing, sft_weight=0.25)
    rows = completions(10, seed=3)

    def total(values: Sequence[float]) -> float:
        moved = [row._replace(policy=value) for row, value in zip(rows, values, strict=True)]
        return sum(loss.value for loss in dpo_losses(list(zip(moved[::2], moved[1::2], strict=True)), config))

    policy = [row.policy for row in rows]
    losses = dpo_losses(list(zip(rows[::2], rows[1::2], strict=True)), config)
    mine = [entry for loss in losses for entry in (loss.chosen_gradient, loss.rejected_gradient)]
    for index, gradient in enumerate(mine):
        step = 1e-5
        above, below = (
            [*policy[:index], policy[index] + sign * step, *policy[index + 1 :]] for sign in (1, -1)
        )
        assert gradient == pytest.approx((total(above) - total(below)) / (2 * step), abs=1e-7)


def test_simpo_is_that_of_trl() -> None:
    """TRL has it in its CPO trainer, as a function of the mean log-probabilities alone."""
    from types import SimpleNamespace

    from trl.experimental.cpo import CPOTrainer

    rows, config = completions(8, seed=5), DpoConfig(DpoLoss.SIMPO, beta=2.0, target_margin=0.7)
    trainer = SimpleNamespace(
        beta=2.0, simpo_gamma=0.7, label_smoothing=0.0, loss_type="simpo", alpha=0.0,
        accelerator=SimpleNamespace(device="cpu"),
    )  # fmt: skip

    def theirs(leaf: torch.Tensor) -> torch.Tensor:
        means = leaf / torch.tensor([row.tokens for row in rows], dtype=torch.float64)
        losses, _, _ = CPOTrainer.cpo_loss(trainer, means[::2], means[1::2])  # type: ignore[arg-type]
        return losses.mean()

    value, gradient = autograd([row.policy for row in rows], theirs)
    losses = dpo_losses(list(zip(rows[::2], rows[1::2], strict=True)), config)
    assert sum(loss.value for loss in losses) == pytest.approx(value, rel=1e-9)
    mine = [entry for loss in losses for entry in (loss.chosen_gradient, loss.rejected_gradient)]
    assert mine == pytest.approx(gradient, rel=1e-9)


def test_the_divergence_of_kto_has_no_gradient_and_is_never_negative() -> None:
    rows = completions(6, seed=9)
    assert kto_divergence([CompletionLogprob(-9.0, -1.0, 3)]) == 0.0
    assert kto_divergence([CompletionLogprob(-1.0, -9.0, 3)]) == 8.0
    labels = [True, False, True, True, False, False]

    def plain(leaf: torch.Tensor) -> torch.Tensor:
        ratios = leaf - torch.tensor([row.reference for row in rows], dtype=torch.float64)
        signs = torch.tensor([1.0 if label else -1.0 for label in labels], dtype=torch.float64)
        weights = torch.tensor([0.7 if label else 1.3 for label in labels], dtype=torch.float64)
        return (weights * (1 - torch.sigmoid(0.1 * signs * (ratios - 2.5)))).mean()

    value, gradient = autograd([row.policy for row in rows], plain)
    losses = kto_losses(rows, labels, 2.5, KtoConfig(0.1, 0.7, 1.3))
    assert sum(loss.value for loss in losses) == pytest.approx(value, rel=1e-12)
    assert [loss.gradient for loss in losses] == pytest.approx(gradient, rel=1e-10)
