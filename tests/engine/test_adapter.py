"""An adapter's first weights, its optimizer, its snapshots and its resumption."""

from __future__ import annotations

import pytest
import torch

from hermes.engine.lora.adapter import Adapter, optim_step
from hermes.engine.model.load import wrap_model
from hermes.engine.spec import HEAD, ModelSpec
from hermes.engine.types import AdamParams, EngineUserError, LoraConfig

from .tiny import tiny_model

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def spec() -> ModelSpec:
    return wrap_model(tiny_model("llama-tied"), "tiny").spec


def push(adapter: Adapter, seed: int, size: float = 1.0) -> None:
    adapter.gradient += size * torch.randn(
        adapter.gradient.shape, generator=torch.Generator().manual_seed(seed)
    )


def test_a_new_adapter_changes_nothing_and_scales_by_32_over_rank(spec: ModelSpec) -> None:
    for rank in (1, 4, 64):
        weights = Adapter(spec, LoraConfig(rank=rank, seed=0), CPU).freeze()
        assert set(weights.groups) == set(spec.groups)
        for group in weights.groups.values():
            assert group.a.std() > 0
            assert all(part and not part.b.any() and part.scale == 32 / rank for part in group.parts)


def test_the_seed_decides_the_first_weights(spec: ModelSpec) -> None:
    one, same, other = (Adapter(spec, LoraConfig(rank=4, seed=seed), CPU) for seed in (1, 1, 2))
    assert torch.equal(one.parameters, same.parameters)
    assert not torch.equal(one.parameters, other.parameters)
    drawn = [Adapter(spec, LoraConfig(rank=4), CPU) for _ in range(2)]
    assert not torch.equal(drawn[0].parameters, drawn[1].parameters)


@pytest.mark.parametrize(
    ("flags", "left"),
    [
        ({"train_attn": False}, {"gate_up", "down", "lm_head"}),
        ({"train_mlp": False}, {"qkv", "o", "lm_head"}),
        ({"train_unembed": False}, {"qkv", "o", "gate_up", "down"}),
        ({"train_attn": False, "train_mlp": False}, {"lm_head"}),
    ],
)
def test_flags_choose_what_is_trained(spec: ModelSpec, flags: dict[str, bool], left: set[str]) -> None:
    weights = Adapter(spec, LoraConfig(rank=4, seed=0, **flags), CPU).freeze()  # type: ignore[arg-type]
    assert {name for _, name in weights.groups} == left
    assert (HEAD in weights.groups) == ("lm_head" in left)


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        (LoraConfig(rank=0), "between 1 and 64"),
        (LoraConfig(rank=65), "between 1 and 64"),
        (LoraConfig(alpha=0.0), "alpha"),
        (LoraConfig(seed=2**63), "seed must fit 64 bits"),
        (LoraConfig(train_attn=False, train_mlp=False, train_unembed=False), "train nothing"),
    ],
)
def test_an_adapter_that_makes_no_sense_is_refused(spec: ModelSpec, config: LoraConfig, reason: str) -> None:
    with pytest.raises(EngineUserError, match=reason):
        Adapter(spec, config, CPU)


def test_a_snapshot_does_not_change_with_training(spec: ModelSpec) -> None:
    adapter = Adapter(spec, LoraConfig(rank=4, seed=0), CPU)
    frozen = adapter.freeze()
    before = frozen.groups[0, "qkv"].a.clone()
    push(adapter, 0)
    optim_step(adapter, AdamParams(learning_rate=0.1))
    assert torch.equal(frozen.groups[0, "qkv"].a, before)
    assert not torch.equal(adapter.freeze().groups[0, "qkv"].a, before)


def test_a_resumed_adapter_goes_on_exactly_and_a_fresh_optimizer_does_not(spec: ModelSpec) -> None:
    def resumed(with_optimizer: bool) -> torch.Tensor:
        first = Adapter(spec, LoraConfig(rank=4, seed=0), CPU)
        for seed in range(3):
            push(first, seed)
            optim_step(first, AdamParams(learning_rate=0.1))
        second = Adapter(spec, LoraConfig(rank=4, seed=7), CPU)
        push(second, 5)
        second.load_state(first.freeze(), first.state() if with_optimizer else None)
        for adapter in (first, second):
            push(adapter, 9)
            optim_step(adapter, AdamParams(learning_rate=0.1))
        assert second.steps == (4 if with_optimizer else 1)
        return (first.parameters - second.parameters).detach()

    assert not resumed(with_optimizer=True).any()
    assert resumed(with_optimizer=False).any()


def test_weights_of_another_rank_are_refused_with_the_place(spec: ModelSpec) -> None:
    adapter = Adapter(spec, LoraConfig(rank=4, seed=0), CPU)
    before = adapter.parameters.detach().clone()
    with pytest.raises(EngineUserError, match=r"layer 0, q: \(2, 64\) against \(4, 64\)"):
        adapter.load_state(Adapter(spec, LoraConfig(rank=2, seed=0), CPU).freeze(), None)
    with pytest.raises(EngineUserError, match="another shape"):
        adapter.load_state(adapter.freeze(), Adapter(spec, LoraConfig(rank=2), CPU).state())
    assert torch.equal(adapter.parameters, before)


def test_a_gradient_that_is_not_finite_changes_nothing(spec: ModelSpec) -> None:
    adapter = Adapter(spec, LoraConfig(rank=4, seed=0), CPU)
    before = adapter.parameters.detach().clone()
    adapter.gradient[3] = torch.nan
    with pytest.raises(EngineUserError, match="not finite"):
        optim_step(adapter, AdamParams())
    assert torch.equal(adapter.parameters, before)
    assert adapter.steps == 0 and not adapter.gradient.any()


def test_clipping_scales_the_whole_gradient_and_reports_the_norm_before(spec: ModelSpec) -> None:
    clipped, scaled = (Adapter(spec, LoraConfig(rank=4, seed=0), CPU) for _ in range(2))
    push(clipped, 1)
    norm = float(clipped.gradient.norm())
    scaled.gradient += clipped.gradient * (0.5 / norm)
    # With eps as large as this, Adam's step depends on the gradient's size.
    metrics = optim_step(clipped, AdamParams(learning_rate=0.1, eps=1.0, grad_clip_norm=0.5))
    optim_step(scaled, AdamParams(learning_rate=0.1, eps=1.0))
    assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-6)
    torch.testing.assert_close(clipped.parameters, scaled.parameters, atol=1e-7, rtol=1e-5)
