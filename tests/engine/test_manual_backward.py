"""The manual backward pass gives the gradients of autograd, which are compared with the naive ones."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from hermes.engine.attention.packing import pack
from hermes.engine.attention.varlen import node_tree
from hermes.engine.lora.adapter import Adapter
from hermes.engine.model.llama import LlamaBackbone
from hermes.engine.model.load import wrap_model
from hermes.engine.training import passes
from hermes.engine.training.forward_backward import forward_backward
from hermes.engine.training.layer_weights import adapter_layout
from hermes.engine.training.manual_backward import LayerStack
from hermes.engine.types import Datum, LoraConfig, Loss, TrainOutput

from .layer_parts import CPU, PLAIN, PlainVarlen, made, states_and_gradient, texts
from .naive import cross_entropy, expect_same_gradient, naive_step, peft_twin
from .tiny import tiny_model

CONFIGS: dict[str, dict[str, Any]] = {
    "all": {},
    "scaled": {"alpha": 6.0},
    "attention only": {"train_mlp": False},
    "feed-forward only": {"train_attn": False, "train_unembed": False},
    "head only": {"train_attn": False, "train_mlp": False},
}


def data() -> list[Datum]:
    rng = np.random.default_rng(0)
    return [
        Datum(
            text[:-1],
            {"target_tokens": text[1:], "weights": rng.normal(size=len(text) - 1).astype(np.float32)},
        )
        for text in texts()
    ]


def step(backbone: LlamaBackbone, adapter: Adapter, **how: Any) -> tuple[TrainOutput, Tensor]:
    adapter.gradient.zero_()
    how = {"budget_tokens": 10**5, **how}
    work = forward_backward(backbone, adapter, data(), Loss("cross_entropy"), **how)
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value, adapter.gradient.clone()


def expect_same(monkeypatch: pytest.MonkeyPatch, family: str, config: dict[str, Any], **how: Any) -> None:
    backbone, adapter = made(family, **config)
    wanted, gradient = step(backbone, adapter, **how)
    monkeypatch.setattr(passes, "MANUAL_BACKWARD_DEVICES", ("cpu",))
    found, ours = step(backbone, adapter, **how)
    torch.testing.assert_close(ours, gradient, atol=1e-5 * float(gradient.abs().max()), rtol=1e-5)
    assert found.metrics["loss:sum"] == pytest.approx(wanted.metrics["loss:sum"], rel=1e-5)
    for one, other in zip(found.logprobs, wanted.logprobs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)


@pytest.mark.parametrize("family", ["llama", "llama-bias", "yarn", "qwen2", "qwen3", "mistral-window"])
def test_every_family_gives_the_gradients_of_its_graph(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_same(monkeypatch, family, {})


@pytest.mark.parametrize("what", [name for name in CONFIGS if name != "all"])
def test_every_choice_of_what_is_trained_does_too(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expect_same(monkeypatch, "qwen2", CONFIGS[what])


def test_layers_computed_again_and_micro_batches_do_too(monkeypatch: pytest.MonkeyPatch) -> None:
    expect_same(monkeypatch, "qwen3", {}, budget_tokens=20)


def test_a_forward_pass_alone_keeps_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    expect_same(monkeypatch, "llama", {}, forward_only=True)
    backbone, adapter = made("llama")
    (batch,) = pack(texts(), 10**5)
    stack = LayerStack(backbone, adapter, PlainVarlen(batch), PLAIN)
    stack.forward(torch.as_tensor(batch.tokens), torch.as_tensor(batch.positions), keep=False)
    assert stack.activations == []


def test_the_gradients_are_the_naive_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "MANUAL_BACKWARD_DEVICES", ("cpu",))
    backbone, adapter = made("llama-tied")
    twin = peft_twin(tiny_model("llama-tied"), adapter)
    step(backbone, adapter)
    naive_step(twin, data(), cross_entropy)
    expect_same_gradient(adapter, twin)


@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_keys_repeated_for_one_kernel_call_change_nothing(family: str) -> None:
    (batch,) = pack(texts(), 10**5)
    assert node_tree(batch).shares
    dense = states_and_gradient(family, batch, PLAIN, repeated=False)
    repeated = states_and_gradient(family, batch, PLAIN, repeated=True)
    for one, other in zip(repeated, dense, strict=True):
        torch.testing.assert_close(one, other, atol=1e-5 * float(other.abs().max()), rtol=1e-5)


def test_the_same_input_gives_the_same_gradient_bit_for_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes, "MANUAL_BACKWARD_DEVICES", ("cpu",))
    backbone, adapter = made("llama")
    assert torch.equal(step(backbone, adapter)[1], step(backbone, adapter)[1])


def test_half_precision_stays_near_full_precision() -> None:
    (batch,) = pack(texts(), 10**5)
    wanted = states_and_gradient("llama", batch, PLAIN, repeated=True)
    model = tiny_model("llama").to(torch.bfloat16)
    backbone = wrap_model(model, "tiny")
    assert isinstance(backbone, LlamaBackbone)
    _, adapter = made("llama")
    found = states_and_gradient("llama", batch, PLAIN, repeated=True, given=(backbone, adapter))
    for one, other in zip(found, wanted, strict=True):
        gap = float((one.float() - other).norm() / other.norm())
        assert gap < 0.05
    assert found[1].dtype == torch.float32


def test_adapters_alike_share_a_layout() -> None:
    backbone, _ = made("llama")
    layouts = []
    for rank in (4, 8, 4):
        adapter = Adapter(backbone.spec, LoraConfig(rank=rank, seed=0), CPU)
        layouts.append(adapter_layout(adapter))
    assert layouts[0] is layouts[2] and layouts[0] is not layouts[1]
