"""Packed, shared and micro-batched training gives what one sequence after the other gives through PEFT."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes.engine.lora.adapter import Adapter
from hermes.engine.model.backbone import Backbone
from hermes.engine.model.load import Kind, wrap_model
from hermes.engine.training.forward_backward import forward_backward, optim_step
from hermes.engine.training.shared_prefix import MIN_TOKENS
from hermes.engine.types import AdamParams, Datum, Ints, LoraConfig, Loss, TrainOutput

from .naive import cross_entropy, expect_same_gradient, importance_sampling, naive_step, peft_twin, shake
from .tiny import tiny_model

CPU = torch.device("cpu")


def finish(work: Generator[None, None, TrainOutput]) -> tuple[TrainOutput, int]:
    """The output, and how many micro-batches it took."""
    count = 1
    while True:
        try:
            next(work)
        except StopIteration as end:
            return end.value, count
        count += 1


def train(
    backbone: Backbone, adapter: Adapter, data: Sequence[Datum], loss: str, budget: int = 100_000, **how: Any
) -> TrainOutput:
    return finish(forward_backward(backbone, adapter, data, Loss(loss), budget_tokens=budget, **how))[0]


def sft_datum(tokens: Ints, rng: np.random.Generator, start: int = 0) -> Datum:
    """Predicts the next token, with fractional and negative weights from `start` on."""
    weights = rng.normal(size=len(tokens) - 1).astype(np.float32)
    weights[:start] = 0.0
    return Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": weights})


def rl_datum(tokens: Ints, rng: np.random.Generator, prompt: int) -> Datum:
    advantages = np.full(len(tokens) - 1, rng.normal(), dtype=np.float32)
    logprobs = (-6.0 + 0.3 * rng.normal(size=len(tokens) - 1)).astype(np.float32)
    advantages[: prompt - 1] = logprobs[: prompt - 1] = 0.0
    return Datum(tokens[:-1], {"target_tokens": tokens[1:], "logprobs": logprobs, "advantages": advantages})


def groups(rng: np.random.Generator, shapes: Sequence[tuple[int, Sequence[int]]]) -> list[tuple[Ints, int]]:
    """(tokens, prompt length) of each completion of groups given as (prompt, completions) lengths."""
    found = []
    for prompt, completions in shapes:
        shared = rng.integers(0, 512, prompt)
        found += [(np.concatenate([shared, rng.integers(0, 512, one)]), prompt) for one in completions]
    return found


def make(family: str, kind: Kind = "auto", **config: Any) -> tuple[Backbone, Adapter, Any]:
    backbone = wrap_model(tiny_model(family), family, kind=kind)
    adapter = Adapter(backbone.spec, LoraConfig(**{"rank": 4, "seed": 3, **config}), CPU)
    shake(adapter)
    return backbone, adapter, peft_twin(tiny_model(family), adapter)


@pytest.mark.parametrize(
    ("family", "kind"),
    [
        ("llama", "compact"),
        ("llama-tied", "compact"),
        ("qwen2", "compact"),
        ("qwen3", "compact"),
        ("mistral-window", "compact"),
        ("llama-tied", "transformers"),
        ("gemma", "transformers"),
        ("gemma3", "transformers"),
        ("phi3", "transformers"),
    ],
)
def test_packed_and_shared_gradients_equal_the_naive_ones(family: str, kind: Kind) -> None:
    rng = np.random.default_rng(0)
    backbone, adapter, twin = make(family, kind)
    data = [
        rl_datum(tokens, rng, prompt) for tokens, prompt in groups(rng, [(20, (3, 9, 1, 14)), (11, (5, 5))])
    ]
    output = train(backbone, adapter, data, "importance_sampling")
    loss, logprobs = naive_step(twin, data, importance_sampling)
    expect_same_gradient(adapter, twin)
    assert output.metrics["loss:sum"] == pytest.approx(loss, abs=1e-4)
    for ours, theirs in zip(output.logprobs, logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-4)


def test_a_shared_prompt_is_computed_once() -> None:
    rng = np.random.default_rng(0)
    backbone, adapter, _ = make("llama")
    data = [rl_datum(tokens, rng, prompt) for tokens, prompt in groups(rng, [(50, (10,) * 8)])]
    output = train(backbone, adapter, data, "importance_sampling")
    # The last token of each sequence is only a target, and nothing is predicted from it.
    assert output.metrics["computed_tokens:sum"] == 50 + 8 * 9


SHAPES = st.lists(
    st.tuples(st.integers(1, 30), st.lists(st.integers(1, 12), min_size=1, max_size=4)),
    min_size=1,
    max_size=3,
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(shapes=SHAPES, seed=st.integers(0, 1000), budget=st.integers(1, 90), weighted_prompt=st.booleans())
def test_no_group_shape_and_no_micro_batch_changes_a_gradient(
    shapes: list[tuple[int, list[int]]], seed: int, budget: int, weighted_prompt: bool
) -> None:
    rng = np.random.default_rng(seed)
    backbone, adapter, twin = make("llama-tied")
    start = 0 if weighted_prompt else 5
    data = [sft_datum(tokens, rng, start) for tokens, _ in groups(rng, shapes)]
    order = rng.permutation(len(data))
    train(backbone, adapter, [data[index] for index in order], "cross_entropy", budget)
    naive_step(twin, data, cross_entropy)
    expect_same_gradient(adapter, twin)


def test_several_targets_a_position_train_like_their_weighted_sum() -> None:
    rng = np.random.default_rng(2)
    backbone, adapter, twin = make("llama")
    data = []
    for tokens, _ in groups(rng, [(12, (4, 6)), (3, (5,))]):
        width = 3 if len(data) < 2 else 2
        shape = (len(tokens) - 1, width)
        weights = np.where(rng.random(shape) < 0.5, 0.0, rng.normal(size=shape)).astype(np.float32)
        data.append(Datum(tokens[:-1], {"target_tokens": rng.integers(0, 512, shape), "weights": weights}))
    data.append(sft_datum(rng.integers(0, 512, 9), rng))
    output = train(backbone, adapter, data, "cross_entropy", budget=20)
    loss, logprobs = naive_step(twin, data, cross_entropy)
    expect_same_gradient(adapter, twin)
    assert output.metrics["loss:sum"] == pytest.approx(loss, rel=1e-5)
    assert [one.shape for one in output.logprobs] == [(15, 3), (17, 3), (7, 2), (8,)]
    for ours, theirs in zip(output.logprobs, logprobs, strict=True):
        np.testing.assert_allclose(ours, theirs.numpy(), atol=1e-4)


def test_a_sequence_ratio_trains_each_token_by_its_own_logprob() -> None:
    rng = np.random.default_rng(4)
    backbone, adapter, twin = make("llama")
    data = []
    for tokens, prompt in groups(rng, [(14, (6, 8, 3))]):
        datum = rl_datum(tokens, rng, prompt)
        mask = (datum.inputs["advantages"] != 0).astype(np.float32)
        data.append(Datum(datum.tokens, {**datum.inputs, "sequence_ratio_mask": mask}))

    def gspo(p: torch.Tensor, datum: Datum) -> torch.Tensor:
        q, a, mask = (
            torch.as_tensor(datum.inputs[name]) for name in ("logprobs", "advantages", "sequence_ratio_mask")
        )
        s = ((p - q) * mask).sum().div(mask.sum()).exp().detach()
        ratio = s * (p - p.detach()).exp()
        return -torch.minimum(ratio * a, ratio.clamp(0.1, 10.0) * a)

    wide = {"clip_low_threshold": 0.1, "clip_high_threshold": 10.0}
    work = forward_backward(backbone, adapter, data, Loss("gspo", wide), budget_tokens=25)
    output, _ = finish(work)
    loss, _ = naive_step(twin, data, gspo)
    expect_same_gradient(adapter, twin)
    assert output.metrics["loss:sum"] == pytest.approx(loss, rel=1e-5)


def test_a_forward_pass_returns_the_logprobs_and_touches_no_gradient() -> None:
    rng = np.random.default_rng(0)
    backbone, adapter, _ = make("llama")
    data = [rl_datum(tokens, rng, prompt) for tokens, prompt in groups(rng, [(20, (3, 9)), (11, (5,))])]
    looked = train(backbone, adapter, data, "importance_sampling", forward_only=True)
    assert not adapter.gradient.any()
    output = train(backbone, adapter, data, "importance_sampling")
    assert looked.metrics["loss:sum"] == pytest.approx(output.metrics["loss:sum"], rel=1e-6)
    for one, other in zip(looked.logprobs, output.logprobs, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_gradients_add_up_over_calls_until_the_step_clears_them() -> None:
    rng = np.random.default_rng(0)
    backbone, adapter, _ = make("llama")
    data = [sft_datum(tokens, rng) for tokens, _ in groups(rng, [(20, (3, 9, 4))])]
    train(backbone, adapter, data, "cross_entropy")
    whole = adapter.gradient.clone()
    adapter.gradient.zero_()
    for datum in data:
        train(backbone, adapter, [datum], "cross_entropy")
    torch.testing.assert_close(adapter.gradient, whole, atol=1e-5 * float(whole.abs().max()), rtol=1e-5)
    optim_step(adapter, AdamParams())
    assert not adapter.gradient.any()


def test_weights_of_zero_give_logprobs_and_no_gradient() -> None:
    rng = np.random.default_rng(0)
    backbone, adapter, twin = make("llama")
    tokens = rng.integers(0, 512, 12)
    datum = Datum(tokens[:-1], {"target_tokens": tokens[1:], "weights": np.zeros(11, np.float32)})
    output = train(backbone, adapter, [datum], "cross_entropy")
    assert output.metrics["loss:sum"] == 0.0
    assert not adapter.gradient.any()
    _, logprobs = naive_step(twin, [datum], cross_entropy)
    np.testing.assert_allclose(output.logprobs[0], logprobs[0].numpy(), atol=1e-4)


def test_no_data_is_no_work() -> None:
    backbone, adapter, _ = make("llama")
    output = train(backbone, adapter, [], "cross_entropy")
    assert output.logprobs == () and output.metrics["loss:sum"] == 0.0
    assert not adapter.gradient.any()


@pytest.mark.parametrize(("family", "kind"), [("llama", "compact"), ("gemma", "transformers")])
def test_a_sequence_over_the_budget_is_recomputed_and_gives_the_same_gradient(
    family: str, kind: Kind
) -> None:
    rng = np.random.default_rng(0)
    backbone, adapter, twin = make(family, kind)
    data = [sft_datum(rng.integers(0, 512, 60), rng), sft_datum(rng.integers(0, 512, 10), rng)]
    work = forward_backward(backbone, adapter, data, Loss("cross_entropy"), budget_tokens=20)
    _, batches = finish(work)
    naive_step(twin, data, cross_entropy)
    expect_same_gradient(adapter, twin)
    assert batches == 2


@pytest.mark.parametrize("family", ["llama", "llama-bias", "qwen3"])
@pytest.mark.parametrize("trained_prompt", [False, True])
def test_a_prefix_that_all_share_is_computed_once_whatever_the_number_of_micro_batches(
    family: str, trained_prompt: bool
) -> None:
    seed = random.SystemRandom().randrange(1 << 30)
    print(f"seed {seed}")
    rng = np.random.default_rng(seed)
    backbone, adapter, twin = make(family)
    # The last sequence has one token fewer as input, and one more is its own: two are not of the prefix.
    system = rng.integers(0, 512, rng.integers(MIN_TOKENS + 2, 90))
    sequences = [
        (np.concatenate([system, tokens]), len(system) + prompt)
        for tokens, prompt in groups(rng, [(12, (9, 20)), (15, (14, 6)), (9, (11, 17, 3))])
    ]
    sequences.append((system.copy(), len(system)))  # one that is no longer than what it shares
    data = [rl_datum(tokens, rng, 2 if trained_prompt else prompt) for tokens, prompt in sequences]
    naive_step(twin, data, importance_sampling)
    work = forward_backward(backbone, adapter, data, Loss("importance_sampling"), budget_tokens=130)
    output, batches = finish(work)
    expect_same_gradient(adapter, twin, 1e-4)  # ratios of drawn logprobs are large, and so is their rounding
    together = finish(
        forward_backward(backbone, adapter, data, Loss("importance_sampling"), budget_tokens=10_000)
    )[0]
    assert batches > 1
    again = output.metrics["computed_tokens:sum"] - together.metrics["computed_tokens:sum"]
    assert 0 <= again < len(system), "at most the prompts of groups that are divided"
    for alone, beside in zip(output.logprobs, together.logprobs, strict=True):
        assert np.allclose(alone, beside, atol=1e-4)


def test_a_call_that_is_given_up_half_way_leaves_no_trace() -> None:
    rng = np.random.default_rng(0)
    backbone, adapter, _ = make("llama")
    data = [sft_datum(rng.integers(0, 512, 30), rng) for _ in range(3)]
    work = forward_backward(backbone, adapter, data, Loss("cross_entropy"), budget_tokens=30)
    next(work)
    next(work)
    work.close()
    assert not adapter.gradient.any()


def test_metrics_have_one_colon_and_say_how_far_the_policy_has_moved() -> None:
    rng = np.random.default_rng(0)
    backbone, adapter, _ = make("llama")
    data = [rl_datum(tokens, rng, prompt) for tokens, prompt in groups(rng, [(20, (3, 9))])]
    output = train(backbone, adapter, data, "ppo", budget=30)
    assert all(name.count(":") == 1 for name in output.metrics)
    assert {name.split(":")[1] for name in output.metrics} <= {"mean", "sum", "min", "max"}
    trained = [datum.inputs["advantages"] != 0 for datum in data]
    ratios = np.concatenate(
        [
            np.exp(found - datum.inputs["logprobs"])[mask]
            for found, datum, mask in zip(output.logprobs, data, trained, strict=True)
        ]
    )
    assert output.metrics["ratio:mean"] == pytest.approx(float(ratios.mean()), rel=1e-4)
    assert output.metrics["ratio:max"] == pytest.approx(float(ratios.max()), rel=1e-4)
    assert output.metrics["clip_fraction:mean"] == pytest.approx(
        float(((ratios < 0.8) | (ratios > 1.2)).mean()), rel=1e-5
    )


@pytest.mark.slow
def test_fifty_steps_follow_a_plain_pytorch_and_peft_loop() -> None:
    rng = np.random.default_rng(0)
    backbone = wrap_model(tiny_model("llama-tied"), "tiny")
    adapter = Adapter(backbone.spec, LoraConfig(rank=4, seed=3), CPU)
    twin = peft_twin(tiny_model("llama-tied"), adapter)
    parameters = [one for one in twin.parameters() if one.requires_grad]
    plain = torch.optim.AdamW(parameters, lr=0.0)
    texts = [tokens for tokens, _ in groups(rng, [(10, (6, 7)), (9, (5, 8))])]
    count = sum(len(one) - 1 for one in texts)
    data = [
        Datum(one[:-1], {"target_tokens": one[1:], "weights": np.full(len(one) - 1, 1 / count, np.float32)})
        for one in texts
    ]
    ours, theirs = [], []
    for step in range(50):
        params = AdamParams(
            learning_rate=3e-3 * (1 - step / 60),
            beta1=0.9 if step < 25 else 0.8,
            beta2=0.95,
            eps=1e-8,
            weight_decay=0.01,
            grad_clip_norm=0.5 if step % 2 else 0.0,
        )
        ours.append(train(backbone, adapter, data, "cross_entropy", budget=40).metrics["loss:sum"])
        metrics = optim_step(adapter, params)
        theirs.append(naive_step(twin, data, cross_entropy)[0])
        norm = _plain_step(plain, parameters, params)
        assert metrics["grad_norm"] == pytest.approx(norm, rel=1e-3)
    np.testing.assert_allclose(ours, theirs, atol=1e-4)
    assert ours[-1] < ours[0] - 0.5


def _plain_step(plain: torch.optim.AdamW, parameters: list[Any], params: AdamParams) -> float:
    (group,) = plain.param_groups
    group.update(lr=params.learning_rate, betas=(params.beta1, params.beta2), eps=params.eps)
    group["weight_decay"] = params.weight_decay
    norm = torch.nn.utils.clip_grad_norm_(parameters, params.grad_clip_norm or float("inf"))
    plain.step()
    plain.zero_grad()
    return float(norm)


def test_the_same_seed_gives_the_same_weights_bit_for_bit() -> None:
    finals = []
    for _ in range(2):
        rng = np.random.default_rng(0)
        backbone = wrap_model(tiny_model(), "tiny")
        adapter = Adapter(backbone.spec, LoraConfig(rank=4, seed=3), CPU)
        data = [sft_datum(tokens, rng) for tokens, _ in groups(rng, [(20, (3, 9)), (9, (5,))])]
        for _ in range(5):
            train(backbone, adapter, data, "cross_entropy", budget=30)
            optim_step(adapter, AdamParams(learning_rate=1e-3))
        finals.append(adapter.parameters.detach())
    assert torch.equal(*finals)
