"""Every method of the public SDK is called by these tests; here those no other test needs, mostly async."""

from __future__ import annotations

import inspect
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import tinker
from tinker import types as tt

from tests.engine.http import sdk_calls
from tests.engine.http.engine_process import Server, batch, prompt

NOT_OF_AN_ENGINE = {
    "get_audit_log",  # a managed service's books
    "get_billing_usage",
    "get_current_checkpoint_storage_usage",
    "whoami",
    "get_console_url",  # its web pages
    "get_telemetry",  # the SDK's own business
    "on_queue_state_change",
    "create",
}


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_every_method_of_the_sdk_is_really_called_by_these_tests(tmp_path: Path) -> None:
    """Counted while they run once more, all of them without an error."""
    here = Path(__file__).parent
    files = [str(one) for one in sorted(here.glob("test_tinker_*.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", "-p", sdk_calls.__name__]
    environment = {**os.environ, sdk_calls.VARIABLE: str(tmp_path / "calls.json")}
    done = subprocess.run(
        [*command, "-m", "not slow", *files],
        cwd=here.parents[2],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-3000:]
    called = json.loads((tmp_path / "calls.json").read_text())
    offered = {
        name
        for name in sdk_calls.methods()
        if name.partition(".")[2].removesuffix("_async") not in NOT_OF_AN_ENGINE
    }
    assert len(offered) > 60
    assert sorted(offered - called.keys()) == []


async def test_runs_and_checkpoints_over_the_async_twins(
    shared: Server, connect: Callable[..., tinker.ServiceClient], model: str, rest: tinker.RestClient
) -> None:
    client = connect(shared, project_id="nightly")
    training = await client.create_lora_training_client_async(model, rank=2, seed=1)
    run = training.model_id
    path = (await (await training.save_weights_for_sampler_async("one"))).path
    external = (await (await training.save_weights_external_async("out"))).path
    assert (await rest.get_training_run_async(run)).lora_rank == 2
    assert (await rest.get_training_run_by_tinker_path_async(path)).training_run_id == run
    assert run in [
        one.training_run_id for one in (await rest.list_training_runs_async(limit=1000)).training_runs
    ]
    await rest.publish_checkpoint_from_tinker_path_async(path)
    await rest.set_checkpoint_ttl_from_tinker_path_async(path, 3600)

    async def listed() -> dict[str, tt.Checkpoint]:
        return {one.tinker_path: one for one in (await rest.list_checkpoints_async(run)).checkpoints}

    assert (await listed())[path].public
    assert (await listed())[path].expires_at is not None
    await rest.unpublish_checkpoint_from_tinker_path_async(path)
    await rest.set_checkpoint_ttl_from_tinker_path_async(path, None)
    assert not (await listed())[path].public
    urls = await rest.get_external_weights_urls_async(external)
    assert set(urls.urls) == {"adapter_config.json", "adapter_model.safetensors"}
    copies = [await rest.copy_weights_async(path, "archive"), await client.copy_weights(path)]
    kept = {one.tinker_path for one in (await rest.list_user_checkpoints_async(limit=1000)).checkpoints}
    assert {path, external, *copies} <= kept
    await rest.delete_checkpoint_from_tinker_path_async(path)
    kind, name = external.rsplit("/", 2)[1:]
    await rest.delete_checkpoint_async(run, f"{kind}/{name}")
    rest.delete_checkpoint(copies[0].split("/")[2], "sampler_weights/one").result()
    assert await listed() == {}


async def test_sessions_and_samplers_over_the_async_twins(
    client: tinker.ServiceClient, model: str, rest: tinker.RestClient
) -> None:
    training = await client.create_lora_training_client_async(model, rank=2, seed=1)
    session = training.model_id.partition(":")[0]
    path = (await (await training.save_weights_for_sampler_async("one"))).path
    sampler = await training.create_sampling_client_async(path)
    assert await sampler.get_base_model_async() == model
    assert (await rest.get_sampler_async(sampler._sampling_session_id)).model_path == path
    assert session in (await rest.list_sessions_async(limit=1000)).sessions
    assert (await rest.get_session_async(session)).training_run_ids == [training.model_id]
    await rest.assign_session_project_async(session, "project-2")
    with pytest.warns(tinker.ExperimentalWarning):
        page = await rest.search_sessions_async(tt.SessionSearchRequest(session_id=session))
    assert [one.project_id for one in page.sessions] == ["project-2"]
    with pytest.raises(RuntimeError, match="records no traces"):
        await rest.export_session_trace_async(session)
    with pytest.warns(FutureWarning):
        assert session in (await client.create_rest_client().list_sessions_async(limit=1000)).sessions


async def test_loading_into_a_client_over_every_spelling(client: tinker.ServiceClient, model: str) -> None:
    training = await client.create_lora_training_client_async(model, rank=2, seed=1)
    start = (await (await training.save_state_async("start"))).path
    before = training.forward(batch(1), "cross_entropy").result().metrics["loss:sum"]
    for load in (training.load_state_async, training.load_state_with_optimizer_async, training.load_state):
        training.forward_backward(batch(1), "cross_entropy")
        await (await training.optim_step_async(tt.AdamParams(learning_rate=1e-2))).result_async()
        moved = (await (await training.forward_async(batch(1), "cross_entropy"))).metrics["loss:sum"]
        assert moved != pytest.approx(before)
        with pytest.warns(FutureWarning):
            loading = load(start)
            await (await loading if inspect.iscoroutine(loading) else loading)
        again = (await (await training.forward_async(batch(1), "cross_entropy"))).metrics["loss:sum"]
        assert again == pytest.approx(before)


async def test_a_client_that_leaves_its_context_says_goodbye(shared: Server, model: str) -> None:
    before = shared.metric("sessions")
    with tinker.ServiceClient(base_url=shared.url, api_key="tml-local") as one:
        sampler = one.create_sampling_client(base_model=model)
        assert len(sampler.compute_logprobs(prompt()).result()) == 6
        assert shared.metric("sessions") == before + 1
    assert shared.metric("sessions") == before
