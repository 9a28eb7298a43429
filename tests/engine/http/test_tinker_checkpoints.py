"""Saving and loading through the public SDK, and everything a person can do with what was saved."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tinker
from safetensors.numpy import load as load_tensors
from tinker import types as tt

from tests.engine.http.engine_process import Server, batch, logprobs, prompt
from tests.engine.http.tinker_runs import STEP, fetched, steps


def test_with_its_optimizer_a_run_goes_on_exactly_without_it_only_the_weights_do(
    client: tinker.ServiceClient, model: str
) -> None:
    training = client.create_lora_training_client(model, rank=4, seed=5, train_unembed=False)
    steps(training, range(4))
    path = training.save_state("four").result().path
    unbroken = steps(training, range(4, 9))
    exact = client.create_training_client_from_state_with_optimizer(path)
    assert exact.model_id != training.model_id
    assert steps(exact, range(4, 9)) == pytest.approx(unbroken, rel=1e-6)
    fresh = client.create_training_client_from_state(path)
    resumed = steps(fresh, range(4, 9))
    assert resumed[0] == pytest.approx(unbroken[0], rel=1e-6)
    assert resumed[-1] != pytest.approx(unbroken[-1], rel=1e-4)


async def test_the_async_twins_resume_too(client: tinker.ServiceClient, model: str) -> None:
    training = await client.create_lora_training_client_async(model, rank=2, seed=5)
    saved = await (await training.save_state_async("start"))
    for make in (
        client.create_training_client_from_state_async,
        client.create_training_client_from_state_with_optimizer_async,
    ):
        again = await make(saved.path)
        assert (await again.get_info_async()).lora_rank == 2


def test_loading_into_a_client_that_is_already_there(client: tinker.ServiceClient, model: str) -> None:
    training = client.create_lora_training_client(model, rank=4, seed=5)
    start = training.save_state("start").result().path
    before = training.forward(batch(2), "cross_entropy").result().metrics["loss:sum"]
    steps(training, range(2))
    with pytest.warns(FutureWarning):
        training.load_state_with_optimizer(start).result()
    assert training.forward(batch(2), "cross_entropy").result().metrics["loss:sum"] == pytest.approx(before)
    other = client.create_lora_training_client(model, rank=8)
    with pytest.raises(tinker.RequestFailedError, match="rank 4, the model rank 8") as failed:
        other._load_state_impl(start, optimizer=False, weights_access_token=None).result()
    assert failed.value.category.value == "user"


def test_a_save_sees_what_was_submitted_before_it_and_nothing_after(
    client: tinker.ServiceClient, model: str
) -> None:
    training = client.create_lora_training_client(model, rank=4, seed=5)
    training.forward_backward(batch(2), "cross_entropy")
    training.optim_step(STEP)
    saving = training.save_state("middle")
    ephemeral = training._save_weights_for_sampler_impl(None, None, None)
    training.forward_backward(batch(2), "cross_entropy")
    training.optim_step(STEP).result()
    twin = client.create_lora_training_client(model, rank=4, seed=5)
    steps(twin, range(1))
    expected = logprobs(twin.forward(batch(2), "cross_entropy").result())
    loaded = client.create_training_client_from_state(saving.result().path)
    got = logprobs(loaded.forward(batch(2), "cross_entropy").result())
    for left, right in zip(expected, got, strict=True):
        np.testing.assert_allclose(left, right, atol=1e-5)
    assert isinstance(ephemeral.result(), str)


def test_names_metadata_lists_and_the_last_checkpoint(
    client: tinker.ServiceClient, model: str, rest: tinker.RestClient
) -> None:
    training = client.create_lora_training_client(model, rank=2, user_metadata={"purpose": "test"})
    one = training.save_state("one", ttl_seconds=7200, user_metadata={"step": "1"}).result().path
    with pytest.raises(tinker.RequestFailedError, match="exists already"):
        training.save_state("one").result()
    training.save_state("one", overwrite=True).result()
    two = training.save_weights_for_sampler("two").result().path
    run = rest.get_training_run(training.model_id).result()
    assert run == rest.get_training_run_by_tinker_path(one).result()
    assert (run.base_model, run.lora_rank, run.user_metadata) == (model, 2, {"purpose": "test"})
    assert run.last_checkpoint is not None and run.last_checkpoint.tinker_path == one
    assert run.last_checkpoint.user_metadata is None  # overwriting replaces all of it
    assert run.last_checkpoint.expires_at is None
    assert run.last_sampler_checkpoint is not None and run.last_sampler_checkpoint.tinker_path == two
    listed = rest.list_checkpoints(training.model_id).result().checkpoints
    assert {(one.checkpoint_id, one.checkpoint_type) for one in listed} == {
        ("weights/one", "training"),
        ("sampler_weights/two", "sampler"),
    }
    assert all(one.size_bytes for one in listed)
    everything = rest.list_user_checkpoints(limit=1000).result()
    assert {one, two} <= {found.tinker_path for found in everything.checkpoints}
    page = rest.list_training_runs(limit=1).result()
    assert len(page.training_runs) == 1
    assert page.cursor.total_count >= 1
    info = rest.get_weights_info_by_tinker_path(one).result()
    assert (info.base_model, info.lora_rank, info.train_mlp) == (model, 2, True)


def test_publishing_expiring_copying_and_deleting(
    client: tinker.ServiceClient, model: str, rest: tinker.RestClient
) -> None:
    training = client.create_lora_training_client(model, rank=2, seed=1)
    steps(training, range(1))
    path = training.save_weights_for_sampler("shared").result().path
    expected = client.create_sampling_client(model_path=path).compute_logprobs(prompt()).result()[1:]

    def found() -> tt.Checkpoint:
        return rest.list_checkpoints(training.model_id).result().checkpoints[0]

    rest.publish_checkpoint_from_tinker_path(path).result()
    assert found().public
    rest.unpublish_checkpoint_from_tinker_path(path).result()
    assert not found().public
    rest.set_checkpoint_ttl_from_tinker_path(path, 3600).result()
    assert found().expires_at is not None
    rest.set_checkpoint_ttl_from_tinker_path(path, None).result()
    assert found().expires_at is None
    copy = rest.copy_weights(path, "archive").result()
    assert copy != path
    held = client.create_sampling_client(model_path=path)
    rest.delete_checkpoint_from_tinker_path(path).result()
    assert rest.list_checkpoints(training.model_id).result().checkpoints == []
    assert held.compute_logprobs(prompt()).result()[1:] == pytest.approx(expected, abs=1e-5)
    copied = client.create_sampling_client(model_path=copy).compute_logprobs(prompt()).result()
    assert copied[1:] == pytest.approx(expected, abs=1e-5)
    with pytest.raises(tinker.APIStatusError, match="no checkpoint"):
        client.create_sampling_client(model_path=path)
    with pytest.raises(tinker.NotFoundError):
        rest.delete_checkpoint_from_tinker_path(path).result()


@pytest.mark.parametrize(
    ("flags", "parts"),
    [
        ({"train_attn": True, "train_mlp": False, "train_unembed": False}, {"self_attn"}),
        ({"train_attn": False, "train_mlp": True, "train_unembed": False}, {"mlp"}),
        ({"train_attn": True, "train_mlp": True, "train_unembed": True}, {"self_attn", "mlp", "lm_head"}),
    ],
)
def test_exported_files_hold_the_trained_parts_and_need_no_key(
    client: tinker.ServiceClient,
    model: str,
    rest: tinker.RestClient,
    flags: dict[str, bool],
    parts: set[str],
) -> None:
    training = client.create_lora_training_client(model, rank=3, **flags)
    path = training.save_weights_external("out").result().path
    answer = rest.get_external_weights_urls(path).result()
    files = fetched(answer.urls)
    config = json.loads(files["adapter_config.json"])
    assert (config["peft_type"], config["r"]) == ("LORA", 3)
    names = load_tensors(files["adapter_model.safetensors"]).keys()
    known = ("self_attn", "mlp", "lm_head")
    assert {part for name in names for part in known if part in name} == parts
    url = answer.urls["adapter_config.json"]
    for wrong in (url[:-1] + ("0" if url[-1] != "0" else "1"), url.partition("?")[0]):
        with pytest.raises(urllib.error.HTTPError, match="403"):
            urllib.request.urlopen(wrong, timeout=30)


def test_exported_files_load_into_peft_with_the_same_logits(
    client: tinker.ServiceClient, model: str, rest: tinker.RestClient, tmp_path: Path
) -> None:
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    training = client.create_lora_training_client(model, rank=4, seed=2, train_unembed=False)
    steps(training, range(3))
    path = training.save_weights_external("out").result().path
    for name, content in fetched(rest.get_external_weights_urls(path).result().urls).items():
        (tmp_path / name).write_bytes(content)
    base = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    loaded = PeftModel.from_pretrained(base, str(tmp_path)).eval()
    ids = prompt(10).to_ints()
    with torch.no_grad():
        scores = loaded(input_ids=torch.tensor([ids])).logits.log_softmax(-1)[0]
    expected = [scores[position, token].item() for position, token in enumerate(ids[1:])]
    sampler = training.save_weights_and_get_sampling_client()
    assert sampler.compute_logprobs(prompt(10)).result()[1:] == pytest.approx(expected, abs=1e-4)


def test_encryption_is_clearly_refused(
    client: tinker.ServiceClient, model: str, rest: tinker.RestClient
) -> None:
    training = client.create_lora_training_client(model, rank=2)
    with pytest.raises(tinker.RequestFailedError, match="does not encrypt") as failed:
        training.save_weights_external("secret", age_encryption_recipients=["age1x"]).result()
    assert failed.value.category.value == "user"
    assert rest.list_checkpoints(training.model_id).result().checkpoints == []


@pytest.mark.parametrize("bad", ["a/b", "..", "", "spa ce"])
def test_a_name_that_cannot_be_a_checkpoint_is_refused(
    client: tinker.ServiceClient, model: str, bad: str
) -> None:
    training = client.create_lora_training_client(model, rank=2)
    with pytest.raises(tinker.RequestFailedError, match="cannot be the name"):
        training.save_state(bad).result()
    assert training.save_state("good").result().path.endswith("/good")


@pytest.mark.parametrize("ttl", [1, 3599, 10**10])
def test_a_time_to_live_out_of_range_is_refused(client: tinker.ServiceClient, model: str, ttl: int) -> None:
    training = client.create_lora_training_client(model, rank=2)
    with pytest.raises(tinker.RequestFailedError, match="ttl"):
        training.save_state("one", ttl_seconds=ttl).result()


def test_a_checkpoint_makes_a_model_in_one_call_if_a_client_asks_so(
    client: tinker.ServiceClient, model: str, shared: Server
) -> None:
    training = client.create_lora_training_client(model, rank=3, seed=4)
    steps(training, range(2))
    path = training.save_state("two").result().path
    session = shared.post("create_session", {"sdk_version": "99.0", "type": "create_session"})["session_id"]
    asked: dict[str, Any] = {"session_id": session, "model_seq_id": 5, "path": path, "optimizer": True}
    accepted = shared.post("load_weights", asked)
    result = shared.post("retrieve_future", {"request_id": accepted["request_id"]})
    assert result["model_id"] == f"{session}:train:5"
    info = shared.post("get_info", {"model_id": f"{session}:train:5"})
    assert info["lora_rank"] == 3
    shared.post(f"sessions/{session}/finish", {"reason": {"type": "success"}})
