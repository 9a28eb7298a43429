"""What is wrong is said once, with the reason, and harms nobody else."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import tinker
from tinker import types as tt

from tests.engine.http.engine_process import Server, batch, datum, prompt, tokens

SEQUENCE = tokens(6)
FIVE = [0.5] * 5


def policy_datum(**changes: Any) -> tt.Datum:
    return datum(SEQUENCE, **{"logprobs": [-1.0] * 5, "advantages": FIVE, **changes})


BAD_DATA: dict[str, tuple[list[tt.Datum], str, Any]] = {
    "unknown loss": ([datum(SEQUENCE)], "hinge", None),
    "server-side custom loss": ([datum(SEQUENCE)], "custom", {"loss_id": "x"}),
    "stable_reinforce": ([datum(SEQUENCE)], "stable_reinforce", None),
    "weights too short": ([datum(SEQUENCE, weights=[1.0] * 4)], "cross_entropy", None),
    "targets that are no integers": (
        [
            tt.Datum(
                model_input=tt.ModelInput.from_ints(SEQUENCE[:-1]),
                loss_fn_inputs={"target_tokens": np.array(SEQUENCE[1:], np.float32), "weights": FIVE},  # type: ignore[dict-item]
            )
        ],
        "cross_entropy",
        None,
    ),
    "no weights": ([datum(SEQUENCE, advantages=FIVE)], "cross_entropy", None),
    "NaN advantages": ([policy_datum(advantages=[math.nan] * 5)], "importance_sampling", None),
    "infinite logprobs": ([policy_datum(logprobs=[-math.inf] * 5)], "ppo", None),
    "no advantages": ([datum(SEQUENCE, logprobs=FIVE)], "ppo", None),
    "target outside the vocabulary": (
        [datum([*SEQUENCE[:-1], 512])],
        "cross_entropy",
        None,
    ),
    "negative target": ([datum([*SEQUENCE[:-1], -7])], "cross_entropy", None),
    "token outside the vocabulary": ([datum([600, *SEQUENCE[1:]])], "cross_entropy", None),
    "over the context limit": ([datum(tokens(300))], "cross_entropy", None),
    "unknown setting": ([policy_datum()], "ppo", {"clip_threshold": 0.1}),
    "setting that is text": ([policy_datum()], "ppo", {"clip_low_threshold": "low"}),
}


@pytest.mark.parametrize("case", BAD_DATA)
def test_a_bad_batch_fails_finally_and_the_adapter_goes_on(
    client: tinker.ServiceClient, model: str, case: str
) -> None:
    training = client.create_lora_training_client(model, rank=2, seed=1)
    before = training.forward(batch(1), "cross_entropy").result().metrics["loss:sum"]
    data, loss, config = BAD_DATA[case]
    bad = training.forward_backward(data, loss, config)  # type: ignore[arg-type]
    after = training.forward(batch(1), "cross_entropy")  # numbered after the bad one: must not wait for it
    with pytest.raises(tinker.RequestFailedError) as failed:
        bad.result()
    assert failed.value.category.value == "user", failed.value
    assert "internal error" not in str(failed.value)
    assert after.result().metrics["loss:sum"] == pytest.approx(before, rel=1e-6)


@pytest.mark.parametrize(
    "params",
    [
        tt.AdamParams(learning_rate=math.nan),
        tt.AdamParams(learning_rate=-1.0),
        tt.AdamParams(learning_rate=1e38),
        tt.AdamParams(beta1=1.5),
        tt.DimuonParams(learning_rate=0.1),
    ],
    ids=repr,
)
def test_a_bad_optimizer_step_changes_nothing(
    client: tinker.ServiceClient, model: str, params: tt.OptimParams
) -> None:
    training = client.create_lora_training_client(model, rank=2, seed=1)
    before = training.forward_backward(batch(1), "cross_entropy").result().metrics["loss:sum"]
    with pytest.raises(tinker.RequestFailedError) as failed:
        training.optim_step(params).result()
    assert failed.value.category.value == "user"
    after = training.forward(batch(1), "cross_entropy").result().metrics["loss:sum"]
    assert after == pytest.approx(before, rel=1e-6)


@pytest.mark.parametrize("rank", [0, -1, 100_000])
def test_a_rank_that_cannot_be_is_refused(client: tinker.ServiceClient, model: str, rank: int) -> None:
    with pytest.raises(tinker.RequestFailedError, match="rank"):
        client.create_lora_training_client(model, rank=rank)


def test_an_unknown_base_model_is_refused_with_what_there_is(
    client: tinker.ServiceClient, model: str
) -> None:
    with pytest.raises(tinker.BadRequestError, match="does not serve 'Qwen/Qwen3-8B'") as refused:
        client.create_lora_training_client("Qwen/Qwen3-8B")
    assert model in str(refused.value)
    with pytest.raises(tinker.BadRequestError, match="does not serve"):
        client.create_sampling_client(base_model="Qwen/Qwen3-8B")


def test_another_optimizer_is_refused(client: tinker.ServiceClient, model: str) -> None:
    with pytest.raises(tinker.BadRequestError, match="'dimuon' is not supported"):
        client.create_lora_training_client(model, optimizer=tt.DimuonOptimizerConfig())


BAD_SAMPLES: dict[str, dict[str, Any]] = {
    "prompt over the limit": {"prompt": prompt(300)},
    "empty prompt": {"prompt": tt.ModelInput.empty()},
    "token outside the vocabulary": {"prompt": tt.ModelInput.from_ints([5, 512])},
    "negative temperature": {"sampling_params": tt.SamplingParams(max_tokens=2, temperature=-1.0)},
    "top_p of nothing": {"sampling_params": tt.SamplingParams(max_tokens=2, top_p=-0.5)},
    "top_k of nothing": {"sampling_params": tt.SamplingParams(max_tokens=2, top_k=-5)},
    "stop outside the vocabulary": {"sampling_params": tt.SamplingParams(max_tokens=2, stop=[9999])},
    "targets of the wrong length": {
        "target_prompt_logprobs": tt.TensorData(data=[1, 2], dtype="int64", shape=[2, 1])
    },
    "more of the end than there is": {"include_prompt_logprobs": True, "prompt_logprobs_last_n": 50},
    "an image": {
        "prompt": tt.ModelInput(chunks=[tt.ImageChunk(data=b"\x89PNG", format="png", expected_tokens=4)])
    },
}


@pytest.mark.parametrize("case", BAD_SAMPLES)
def test_a_bad_sample_fails_finally(client: tinker.ServiceClient, model: str, case: str) -> None:
    sampler = client.create_sampling_client(base_model=model)
    good: dict[str, Any] = {
        "prompt": prompt(),
        "num_samples": 1,
        "sampling_params": tt.SamplingParams(max_tokens=2),
    }
    with pytest.raises(tinker.RequestFailedError) as failed:
        sampler.sample(**{**good, **BAD_SAMPLES[case]}).result()
    assert failed.value.category.value == "user", failed.value
    assert "internal error" not in str(failed.value)
    assert len(sampler.sample(**good).result().sequences) == 1


def test_two_clients_on_one_model_are_told_so_and_no_gradient_counts_twice(
    client: tinker.ServiceClient, model: str
) -> None:
    """The same request under a used number is the same call; another request is a second writer's."""
    first = client.create_lora_training_client(model, rank=2, seed=1)
    first.forward_backward(batch(2), "cross_entropy").result()
    norm = first.optim_step(tt.AdamParams(learning_rate=0.0)).result().metrics
    second = tinker.TrainingClient(first.holder, model_seq_id=0, model_id=first.model_id)
    same = second.forward_backward(batch(2), "cross_entropy").result()
    assert same.metrics["loss:sum"] > 0
    with pytest.raises(tinker.UnprocessableEntityError, match="two clients"):
        second.optim_step(tt.AdamParams(learning_rate=1.0)).result()
    second.forward_backward(batch(2), "cross_entropy").result()  # a number nobody had used yet
    with pytest.raises(tinker.UnprocessableEntityError, match="two clients"):
        first.forward_backward(batch(2, seed=9), "cross_entropy").result()
    again = first.optim_step(tt.AdamParams(learning_rate=0.0)).result().metrics
    assert norm is not None and again is not None
    assert again["grad_norm"] == pytest.approx(norm["grad_norm"], rel=1e-5)


def test_the_server_names_a_checkpoint_that_is_not_there(
    client: tinker.ServiceClient, shared: Server
) -> None:
    missing = "tinker://nobody:train:0/weights/none"
    with pytest.raises(tinker.NotFoundError, match="no checkpoint"):
        client.create_training_client_from_state(missing)
    with pytest.raises(tinker.BadRequestError, match="no checkpoint"):
        client.create_sampling_client(model_path=missing)
    with pytest.raises(tinker.BadRequestError, match="is not a checkpoint"):
        client.create_sampling_client(model_path="tinker://a/b")
