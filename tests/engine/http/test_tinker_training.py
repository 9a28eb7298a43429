"""Training through the public SDK: losses, order, accumulation, optimizer, adapters side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tinker
import torch
from tinker import types as tt

from tests.engine.http.engine_process import Server, batch, datum, logprobs, tokens

STEP = tt.AdamParams(learning_rate=1e-2)


def make(client: tinker.ServiceClient, model: str, **more: Any) -> tinker.TrainingClient:
    return client.create_lora_training_client(model, **{"rank": 4, "seed": 7, **more})


def flat(output: tt.ForwardBackwardOutput) -> np.ndarray[Any, Any]:
    return np.concatenate([one.ravel() for one in logprobs(output)])


def seen(training: tinker.TrainingClient, data: list[tt.Datum]) -> np.ndarray[Any, Any]:
    """What the model now thinks of the data; changes nothing."""
    return flat(training.forward(data, "cross_entropy").result())


def expected_loss(name: str, p: Any, q: Any, a: Any) -> float:
    """The formulas, written once more and apart from the engine's."""
    r = np.exp(p - q)
    if name == "importance_sampling":
        return float(-(r * a).sum())
    if name == "ppo":
        return float(-np.minimum(r * a, np.clip(r, 0.8, 1.2) * a).sum())
    if name == "cispo":
        return float(-(np.clip(r, 0.0, 4.0) * p * a).sum())
    if name == "dro":
        return float(-(p * a - 0.5 * 0.05 * (p - q) ** 2).sum())
    s = np.exp((p - q).mean())
    return float(-np.minimum(s * a, np.clip(s, 0.8, 1.2) * a).sum())


@pytest.mark.parametrize("loss", ["importance_sampling", "ppo", "cispo", "dro", "gspo"])
def test_a_policy_loss_has_its_documented_value_and_moves_the_weights(
    client: tinker.ServiceClient, model: str, loss: str
) -> None:
    training = make(client, model)
    sequence = tokens(12)
    p = seen(training, [datum(sequence)])
    random = np.random.default_rng(0)
    q = (p + random.normal(0, 0.3, p.shape)).astype(np.float32)
    advantages = random.normal(0, 1, p.shape).astype(np.float32)
    inputs: dict[str, Any] = {"logprobs": q, "advantages": advantages}
    if loss == "gspo":
        inputs["sequence_ratio_mask"] = np.ones_like(p, dtype=np.float32)
    config = {"beta": 0.05} if loss == "dro" else None
    if loss == "gspo":
        config = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
    output = training.forward_backward([datum(sequence, **inputs)], loss, config).result()  # type: ignore[arg-type]
    assert output.metrics["loss:sum"] == pytest.approx(expected_loss(loss, p, q, advantages), rel=1e-4)
    np.testing.assert_allclose(flat(output), p, atol=1e-5)
    assert training.optim_step(STEP).result().metrics
    assert np.abs(seen(training, [datum(sequence)]) - p).max() > 1e-3


def test_cross_entropy_is_a_sum_that_is_linear_in_its_weights(
    client: tinker.ServiceClient, model: str
) -> None:
    training = make(client, model)
    first, second = tokens(8, 1), tokens(11, 2)
    weights = [np.linspace(-1, 2, 7).tolist(), np.linspace(0.5, -0.5, 10).tolist()]
    data = [datum(first, weights=weights[0]), datum(second, weights=weights[1])]
    output = training.forward_backward(data, "cross_entropy").result()
    p = logprobs(output)
    assert [one.shape for one in p] == [(7,), (10,)]
    expected = -sum(float((one * np.array(w)).sum()) for one, w in zip(p, weights, strict=True))
    assert output.metrics["loss:sum"] == pytest.approx(expected, rel=1e-5)


def test_gradients_add_up_over_calls_and_forward_leaves_them_alone(
    client: tinker.ServiceClient, model: str
) -> None:
    data = batch(4)
    whole, parts = make(client, model), make(client, model)
    whole.forward_backward(data, "cross_entropy").result()
    for one in data:
        parts.forward_backward([one], "cross_entropy").result()
        parts.forward(batch(2, seed=5), "cross_entropy").result()
    norms = [training.optim_step(STEP).result().metrics or {} for training in (whole, parts)]
    assert all(metrics.pop("peak_bytes") > 0 for metrics in norms)
    assert norms[0] == pytest.approx(norms[1], rel=1e-4)
    np.testing.assert_allclose(seen(whole, data), seen(parts, data), atol=1e-4)


def test_steps_submitted_ahead_give_what_steps_one_by_one_give(
    client: tinker.ServiceClient, model: str
) -> None:
    ahead, waiting = make(client, model), make(client, model)
    batches = [batch(2, seed=number) for number in range(5)]
    submitted = []
    for data in batches:
        submitted.append(ahead.forward_backward(data, "cross_entropy"))
        ahead.optim_step(STEP)
    patient = []
    for data in batches:
        patient.append(waiting.forward_backward(data, "cross_entropy").result().metrics["loss:sum"])
        waiting.optim_step(STEP).result()
    assert [one.result().metrics["loss:sum"] for one in submitted] == pytest.approx(patient, rel=1e-5)


def test_a_batch_of_many_chunks_comes_back_in_order_and_sums_once(
    client: tinker.ServiceClient, model: str
) -> None:
    """The SDK posts the chunks at once and the first one last."""
    training = make(client, model)
    data = [datum(tokens(3 + index % 3, index % 50)) for index in range(2100)]
    output = training.forward_backward(data, "cross_entropy").result()
    assert [len(one) for one in logprobs(output)] == [2 + index % 3 for index in range(2100)]
    assert output.metrics["loss:sum"] == pytest.approx(-flat(output).sum(), rel=1e-4)
    again = training.forward(data[:1], "cross_entropy").result()
    np.testing.assert_allclose(logprobs(again)[0], logprobs(output)[0], atol=1e-5)


def dpo(data: list[tt.Datum], p: list[torch.Tensor]) -> tuple[torch.Tensor, dict[str, float]]:
    margin = p[0].sum() - p[1].sum()
    loss = -torch.nn.functional.logsigmoid(0.1 * margin)
    return loss, {"margin": margin.item()}


def test_a_preference_loss_of_the_users_own_widens_the_margin(
    client: tinker.ServiceClient, model: str
) -> None:
    training = make(client, model)
    pair = batch(2)
    margins = []
    for _ in range(4):
        output = training.forward_backward_custom(pair, dpo).result()
        training.optim_step(STEP).result()
        margins.append(output.metrics["margin"])
        assert output.metrics["loss:sum"] == pytest.approx(np.log1p(np.exp(-0.1 * margins[-1])), rel=1e-4)
    assert margins == sorted(margins)
    assert margins[-1] > margins[0] + 0.1


async def test_the_async_twins_do_the_same(client: tinker.ServiceClient, model: str) -> None:
    training = await client.create_lora_training_client_async(model, rank=4, seed=7)
    data = batch(2)
    first = await (await training.forward_async(data, "cross_entropy"))
    both = await (await training.forward_backward_async(data, "cross_entropy"))
    np.testing.assert_allclose(flat(first), flat(both), atol=1e-5)
    custom = await (await training.forward_backward_custom_async(data, dpo))
    assert "margin" in custom.metrics
    step = await (await training.optim_step_async(STEP))
    assert step.metrics is not None
    saved = await (await training.save_state_async("one"))
    named = await (await training.save_weights_for_sampler_async("one"))
    external = await (await training.save_weights_external_async("one"))
    info = await training.get_info_async()
    assert saved.path == f"tinker://{info.model_id}/weights/one"
    assert named.path == f"tinker://{info.model_id}/sampler_weights/one"
    assert external.path == f"tinker://{info.model_id}/external_weights/one"
    assert (await client.get_server_capabilities_async()).supported_models[0].trainable


def test_several_targets_a_token_come_back_in_their_shape_dense_or_sparse(
    client: tinker.ServiceClient, model: str
) -> None:
    training = make(client, model)
    sequence = tokens(7)
    targets = torch.zeros(6, 8, dtype=torch.int64)
    weights = torch.zeros(6, 8)
    targets[:, 0] = torch.tensor(sequence[1:])
    targets[2, 1], weights[2, 1], weights[:, 0] = 5, 0.5, 1.0
    wide = tt.Datum(
        model_input=tt.ModelInput.from_ints(sequence[:-1]),
        loss_fn_inputs={"target_tokens": targets, "weights": weights},
    )
    assert wide.loss_fn_inputs["weights"].sparse_crow_indices is not None  # it travels as CSR
    output = training.forward_backward([wide, datum(sequence)], "cross_entropy").result()
    several, single = logprobs(output)
    assert several.shape == (6, 8)
    np.testing.assert_allclose(several[:, 0], single, atol=1e-5)
    expected = -(several * weights.numpy()).sum() - single.sum()
    assert output.metrics["loss:sum"] == pytest.approx(float(expected), rel=1e-5)


def test_adapters_of_different_ranks_live_side_by_side_and_start_as_the_base_model(
    client: tinker.ServiceClient, model: str
) -> None:
    data = batch(2)
    adapters = [make(client, model, rank=rank) for rank in (1, 4, 16)]
    before = [seen(one, data) for one in adapters]
    np.testing.assert_allclose(before[0], before[1], atol=1e-6)
    np.testing.assert_allclose(before[0], before[2], atol=1e-6)
    adapters[1].forward_backward(data, "cross_entropy").result()
    adapters[1].optim_step(STEP).result()
    after = [seen(one, data) for one in adapters]
    np.testing.assert_array_equal(after[0], before[0])
    np.testing.assert_array_equal(after[2], before[2])
    assert np.abs(after[1] - before[1]).max() > 1e-3
    assert [one.get_info().lora_rank for one in adapters] == [1, 4, 16]


def test_a_seed_repeats_and_another_seed_does_not(client: tinker.ServiceClient, model: str) -> None:
    data = batch(2)
    results = []
    for seed in (1, 1, 2):
        training = make(client, model, seed=seed)
        training.forward_backward(data, "cross_entropy").result()
        training.optim_step(STEP).result()
        results.append(seen(training, data))
    np.testing.assert_array_equal(results[0], results[1])
    assert np.abs(results[0] - results[2]).max() > 1e-4


def test_a_clipped_step_reports_the_norm_before_clipping(client: tinker.ServiceClient, model: str) -> None:
    norms = []
    for clip in (0.0, 1e-3):
        training = make(client, model)
        training.forward_backward(batch(2), "cross_entropy").result()
        norms.append(training.optim_step(tt.AdamParams(grad_clip_norm=clip)).result().metrics)
    assert norms[0] is not None and norms[1] is not None
    (name,) = [key for key in norms[0] if "norm" in key and "clip" not in key][:1]
    assert norms[0][name] == pytest.approx(norms[1][name], rel=1e-6)
    assert norms[1][name] > 1e-3


def test_a_steps_metrics_take_no_name_that_loops_use_for_their_own(
    client: tinker.ServiceClient, model: str
) -> None:
    training = make(client, model)
    for count in (1, 2):
        training.forward_backward(batch(2), "cross_entropy").result()
        metrics = training.optim_step(STEP).result().metrics
        assert metrics is not None and metrics["optimizer_step"] == count
        assert not {"step", "epoch", "batch", "progress", "loss", "learning_rate"} & set(metrics)


def test_the_tokenizer_is_a_folder_that_the_client_can_read(client: tinker.ServiceClient, model: str) -> None:
    training = make(client, model)
    assert training.get_info().model_data.tokenizer_id == model
    assert training.get_tokenizer().decode([3, 4]) != ""
    assert client.create_sampling_client(base_model=model).get_tokenizer().eos_token_id == 2


def test_a_loss_of_the_users_own_can_be_made_once_and_runs_in_the_client(
    client: tinker.ServiceClient, model: str, shared: Server
) -> None:
    def negative(p: torch.Tensor, weights: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        loss = -(p * weights).sum()
        return loss, {"custom/negative:sum": loss}

    def renamed(logprobs: torch.Tensor, weights: torch.Tensor) -> Any:
        return negative(logprobs, weights)

    handle = client.create_custom_loss(renamed, {"logprobs": 1, "weights": 1}).result()
    output = make(client, model).forward_backward_custom(batch(2), handle).result()
    assert output.metrics["loss:sum"] == pytest.approx(-flat(output).sum(), rel=1e-5)
