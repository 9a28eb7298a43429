"""Logprobs and their gradients without [T, vocabulary], against the plain formula under autograd."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from hermes.engine.lora.adapter import Adapter
from hermes.engine.lora.weights import LoraWeights
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.lm_head import logprobs_backward, token_logprobs
from hermes.engine.model.load import wrap_model
from hermes.engine.spec import HEAD
from hermes.engine.types import LoraConfig

from .naive import shake
from .tiny import tiny_model


def plain(hidden: Tensor, targets: Tensor, backbone: Backbone, a: Tensor, b: Tensor, scale: float) -> Tensor:
    logits = hidden @ backbone.head_weight.t() + scale * (hidden @ a.t()) @ b.t()
    columns = targets[:, None] if targets.dim() == 1 else targets
    return logits.log_softmax(-1).gather(1, columns).view(targets.shape)


@pytest.mark.parametrize("width", [(), (4,)])
def test_logprobs_and_gradients_equal_the_plain_formula(width: tuple[int, ...]) -> None:
    # With so large a vocabulary, 35 positions take two chunks.
    model = tiny_model("llama-tied", vocab_size=1 << 18, hidden_size=16, num_hidden_layers=1)
    backbone = wrap_model(model, "tiny")
    adapter = Adapter(backbone.spec, LoraConfig(rank=4, alpha=6.0, seed=0), torch.device("cpu"))
    shake(adapter)
    lora = adapter.freeze()
    group = lora.groups[HEAD]
    (part,) = group.parts
    assert part is not None
    generator = torch.Generator().manual_seed(1)
    hidden = torch.randn(35, 16, generator=generator)
    targets = torch.randint(0, 1 << 18, (35, *width), generator=generator)
    targets[3] = targets[2]  # the same token twice, and twice in a row of targets
    pull = torch.randn(targets.shape, generator=generator)

    leaves = [one.clone().requires_grad_() for one in (hidden, group.a, part.b)]
    expected = plain(leaves[0], targets, backbone, leaves[1], leaves[2], part.scale)
    gradients = torch.autograd.grad((expected * pull).sum(), leaves)
    result = logprobs_backward(hidden, targets, backbone, lora, lambda _, rows: pull[rows])

    torch.testing.assert_close(result.logprobs, expected.detach(), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(token_logprobs(hidden, targets, backbone, lora), expected.detach())
    for ours, theirs in zip((result.hidden, result.a, result.b), gradients, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)


def test_without_an_adapter_on_the_output_projection_there_is_no_gradient_for_one() -> None:
    backbone = wrap_model(tiny_model(), "tiny")
    hidden, targets = torch.randn(5, 64), torch.arange(5)
    result = logprobs_backward(hidden, targets, backbone, LoraWeights({}), lambda p, _: torch.ones_like(p))
    assert result.a is None and result.b is None
    torch.testing.assert_close(result.logprobs, token_logprobs(hidden, targets, backbone, None))


def test_a_temperature_scales_the_logits() -> None:
    backbone = wrap_model(tiny_model(), "tiny")
    hidden, targets = torch.randn(5, 64), torch.arange(5)
    logits = hidden @ backbone.head_weight.t() / 0.5
    expected = logits.log_softmax(-1)[torch.arange(5), targets]
    torch.testing.assert_close(token_logprobs(hidden, targets, backbone, None, temperature=0.5), expected)


def test_certainty_gives_logprob_zero_and_no_gradient() -> None:
    backbone = wrap_model(tiny_model(), "tiny")
    hidden = 1e4 * backbone.head_weight[7][None] / float(backbone.head_weight[7].norm())
    result = logprobs_backward(hidden, torch.tensor([7]), backbone, None, lambda p, _: torch.ones_like(p))
    assert float(result.logprobs[0]) == 0.0
    assert float(result.hidden.abs().max()) == 0.0
