"""Training on merged weights: merged again when they change, with and without a kept copy; exact mode is
refused where it has no kernels."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
import torch

from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.lora.adapter import optim_step
from hermes.engine.training import merged_adapter
from hermes.engine.training.merged_adapter import MergedAdapter
from hermes.engine.types import AdamParams, Datum, EngineUserError, LoraConfig, Loss

from .layer_parts import made
from .tiny import tiny_model


def test_weights_are_merged_again_after_a_step_and_for_another_adapter() -> None:
    backbone, adapter = made("llama")
    merged = MergedAdapter(backbone)
    merged.load(adapter)
    before = merged.layer(0).qkv.clone()
    merged.load(adapter)
    assert torch.equal(merged.layer(0).qkv, before)
    adapter.gradient.normal_(generator=torch.Generator().manual_seed(0))
    optim_step(adapter, AdamParams(learning_rate=1e-2))
    merged.load(adapter)
    stepped = merged.layer(0).qkv.clone()
    assert not torch.equal(stepped, before)
    _, other = made("llama")
    merged.load(other)
    assert torch.equal(merged.layer(0).qkv, before)
    merged.load(adapter)
    assert torch.equal(merged.layer(0).qkv, stepped)


def test_a_load_of_other_weights_is_merged_too() -> None:
    backbone, adapter = made("llama")
    _, trained = made("llama")
    trained.gradient.normal_(generator=torch.Generator().manual_seed(0))
    optim_step(trained, AdamParams(learning_rate=1e-2))
    merged = MergedAdapter(backbone)
    merged.load(adapter)
    adapter.load_state(trained.freeze(), None)
    merged.load(adapter)
    expected = MergedAdapter(backbone)
    expected.load(trained)
    for index in range(backbone.spec.layers):
        assert torch.equal(merged.layer(index).down, expected.layer(index).down)


def test_the_gradient_at_other_parameters_is_that_of_a_fresh_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of `--replicas` gets new parameters with its calls; on a GPU they are merged."""
    monkeypatch.setattr("hermes.engine.training.passes.MANUAL_BACKWARD_DEVICES", ("cpu",))
    tiny_model("llama").save_pretrained(tmp_path)
    tokens = np.random.default_rng(0).integers(3, 512, 31)
    weights = np.ones(30, np.float32)
    data = [Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": weights})]
    loss = Loss("cross_entropy")
    with closing(Engine(EngineOptions(str(tmp_path), "cpu", "float32", kv_bytes=1 << 20))) as engine:
        engine.start()
        used, fresh = (engine.create_adapter(LoraConfig(rank=4, seed=1)).result() for _ in range(2))
        _, gradient = engine.compute_gradient(used, None, data, loss).result()
        assert gradient is not None
        parameters = np.random.default_rng(1).normal(0, 0.05, len(gradient)).astype(np.float32)
        answers = [engine.compute_gradient(name, parameters, data, loss).result() for name in (used, fresh)]
    (output, gradient), (wanted, wanted_gradient) = answers
    assert output.metrics == wanted.metrics
    assert np.array_equal(gradient, wanted_gradient)


def test_without_memory_for_a_copy_each_layer_is_merged_when_it_is_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    backbone, adapter = made("llama")
    kept = MergedAdapter(backbone)
    kept.load(adapter)
    monkeypatch.setattr(merged_adapter, "free_bytes", lambda device: 0)
    uncopied = MergedAdapter(backbone)
    uncopied.load(adapter)
    for name in ("qkv", "o", "gate_up", "down"):
        assert torch.equal(getattr(uncopied.layer(1), name), getattr(kept.layer(1), name))


def test_exact_is_refused_on_a_cpu_with_what_to_do(tmp_path: Path) -> None:
    tiny_model("llama").save_pretrained(tmp_path)
    with pytest.raises(EngineUserError, match="--exact needs a GPU and bfloat16") as refused:
        Engine(EngineOptions(str(tmp_path), "cpu", "float32", exact=True))
    assert "without --exact" in str(refused.value.hint)
