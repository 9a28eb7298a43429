"""`hermes engine fleet`: an engine trains, other servers sample its adapters, and every answer names them."""

from __future__ import annotations

import json
import signal
import urllib.error
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import tinker

from hermes.cli.terminal.interrupted import STOPPED
from tests.engine.http.engine_process import KEY, launch
from tests.fakes.lora_server import LoraServer
from tests.rl.fleet_parts import PROMPT, Fleet, engine_logprobs, fleet, run_at, train
from tests.training.world import Process
from tests.waiting import wait_until


@contextmanager
def served(
    model: Path, folder: Path, count: int, dialect: str = "vllm"
) -> Iterator[tuple[Fleet, list[LoraServer]]]:
    """A fleet of servers that answer from a second engine."""
    with ExitStack() as stack:
        sampler = launch(model, folder / "sampler")
        stack.callback(sampler.kill)
        servers = [stack.enter_context(LoraServer(sampler.url, str(model), dialect)) for _ in range(count)]
        yield stack.enter_context(fleet(model, folder, [server.url for server in servers], dialect)), servers


def test_servers_sample_the_newest_adapter_with_its_logprobs_and_its_name(
    model: Path, tmp_path: Path
) -> None:
    with served(model, tmp_path, count=2) as (group, servers):
        base = group.complete()
        assert base["metadata"]["weight_version"] == str(model)
        service = tinker.ServiceClient(base_url=group.trainer.url, api_key=KEY)
        client = service.create_lora_training_client(str(model), rank=4, seed=1)
        answers = [base]
        for step in (1, 2, 3):
            path = train(client, step)
            group.wait_for(path)
            answers.append(answer := group.complete())
            assert answer["metadata"]["weight_version"].startswith(f"{path}@")
            sampled, logprobs = answer["choices"][0]["token_ids"], answer["choices"][0]["logprobs"]
            expected = engine_logprobs(service, path, sampled)
            assert logprobs["token_logprobs"] == pytest.approx(expected, abs=1e-4)
        texts = {json.dumps(answer["choices"][0]["logprobs"]["token_logprobs"]) for answer in answers}
        assert len(texts) == 4, "each version has its own logprobs"
        wait_until(lambda: all(len(server.adapters) == 2 for server in servers))
        assert all("step-1" in server.unloaded[0] for server in servers)
        service.close("success").result(timeout=30)
        group.process.process.send_signal(signal.SIGINT)
        assert group.process.wait() == 0, group.process.output
        assert group.process.output.endswith("stopped; " + STOPPED["engine fleet"] + "\n")


@pytest.mark.slow
def test_a_server_that_answers_with_other_weights_or_lost_them_is_not_believed(
    model: Path, tmp_path: Path
) -> None:
    with served(model, tmp_path, count=2) as (group, servers):
        service = tinker.ServiceClient(base_url=group.trainer.url, api_key=KEY)
        client = service.create_lora_training_client(str(model), rank=4, seed=1)
        path = train(client, 1)
        group.wait_for(path)
        first, second = servers
        first.adapters.clear()  # it was started again
        for _ in range(4):
            assert group.complete()["metadata"]["weight_version"].startswith(path)
        wait_until(lambda: len(first.adapters) == 1)
        first.answers_as = second.answers_as = "another"
        with pytest.raises(urllib.error.HTTPError) as refused:
            group.complete()
        assert refused.value.code == 503
        assert "and 'hermes-" in group.process.output and "was requested" in group.process.output
        first.answers_as = second.answers_as = None
        group.wait_for(path)
        assert group.complete()["metadata"]["weight_version"].startswith(path)
        service.close("success").result(timeout=30)


@pytest.mark.slow
def test_a_server_that_refuses_an_adapter_is_passed_over_and_if_all_do_the_fleet_ends(
    model: Path, tmp_path: Path
) -> None:
    with served(model, tmp_path, count=2) as (group, servers):
        service = tinker.ServiceClient(base_url=group.trainer.url, api_key=KEY)
        client = service.create_lora_training_client(str(model), rank=4, seed=1)
        servers[0].refuses_to_load = "LoRA rank 4 is greater than max_lora_rank 2."
        path = train(client, 1)
        wait_until(lambda: (group.policy()["weight_version"] or "").startswith(path))
        wait_until(lambda: group.process.output.count("cannot load") >= 4)
        assert group.complete()["metadata"]["weight_version"].startswith(path), "the other one has it"
        servers[1].refuses_to_load = "the disk is full"
        train(client, 2)
        assert group.process.wait() == 2
        assert "error: no server can load tinker://" in group.process.output
        assert "LoRA rank 4 is greater than max_lora_rank 2." in group.process.output
        service.close("success").result(timeout=30)


@pytest.mark.slow
def test_sglang_servers_get_the_adapter_by_its_name(model: Path, tmp_path: Path) -> None:
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 4}, "return_logprob": True}
    with served(model, tmp_path, count=1, dialect="sglang") as (group, servers):
        assert group.post("/generate", body)["meta_info"]["weight_version"] == str(model)
        service = tinker.ServiceClient(base_url=group.trainer.url, api_key=KEY)
        path = train(service.create_lora_training_client(str(model), rank=4, seed=1), 1)
        group.wait_for(path)
        meta = group.post("/generate", body)["meta_info"]
        assert meta["weight_version"].startswith(f"{path}@")
        assert len(meta["output_token_logprobs"]) == 4
        assert "step-1" in servers[0].sampled[-1]
        servers[0].adapters.clear()  # it was started again: its answer is 400, as for a bad request
        with pytest.raises(urllib.error.HTTPError) as refused:
            group.post("/generate", body)
        assert refused.value.code == 503, "the request is right, and can be sent again"
        group.wait_for(path)
        assert [sample.version.startswith(path) for sample in group.sample(n=2)] == [True, True]
        with pytest.raises(urllib.error.HTTPError) as refused:
            group.post("/generate", {**body, "sampling_params": {"temperature": -1}})
        assert refused.value.code == 400 and group.policy()["servers"][0]["ready"]
        service.close("success").result(timeout=30)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_whose_environment_samples_at_a_fleet_trains_every_batch_once_and_knows_its_weights(
    model: Path, tmp_path: Path
) -> None:
    with served(model, tmp_path, count=2) as (group, servers):
        rows = run_at(group, model, tmp_path, 6)
        for server in servers:
            assert any("step-" in name for name in server.sampled), "both servers sample trained weights"
    assert all(row["health/staleness_max"] <= 2 for row in rows), "the version of every answer is known"
    assert all(row["health/logprob_gap"] < 1e-4 for row in rows if row["health/staleness_max"] == 0)


def test_servers_that_cannot_load_adapters_are_refused_at_the_start(model: Path, tmp_path: Path) -> None:
    engine = launch(model, tmp_path / "engine")
    try:
        flags = ("--service", engine.url, "--folder", str(tmp_path / "adapters"), "--port", "0")
        plain = Process(tmp_path / "home", "engine", "fleet", "--base-url", engine.url, *flags)
        assert plain.wait() == 2, plain.output
        assert f"the server at {engine.url} does not load adapters" in plain.output
        assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1" in plain.output
        nobody = Process(tmp_path / "home", "engine", "fleet", "--base-url", "http://127.0.0.1:9", *flags)
        assert nobody.wait() == 2, nobody.output
        assert "no vllm server answers at http://127.0.0.1:9" in nobody.output
    finally:
        engine.kill()
