"""`hermes engine fleet`: an engine trains, other servers sample its adapters, and every answer names them."""

from __future__ import annotations

import json
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tinker
from tinker import types as tt

from hermes.cli.terminal.interrupted import STOPPED
from tests.engine.http.engine_process import KEY, Server, datum, launch
from tests.fakes.lora_server import LoraServer
from tests.rl.parts import Parts
from tests.training.books import check_served, check_weights, trained_leases
from tests.training.world import Process, metrics
from tests.waiting import wait_until

PROMPT = [40, 41, 42, 43, 44, 45]


class Fleet(NamedTuple):
    trainer: Server
    """The engine that trains."""
    servers: list[LoraServer]
    process: Process
    url: str

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def complete(self) -> dict[str, Any]:
        body = {"model": "policy", "prompt": PROMPT, "max_tokens": 8, "logprobs": 1, "temperature": 1.0}
        return self.post("/v1/completions", {**body, "return_token_ids": True, "seed": 1})

    def policy(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/v1/models", timeout=60) as response:
            metadata: dict[str, Any] = json.load(response)["data"][0]["metadata"]
        return metadata

    def wait_for(self, path: str) -> None:
        """Until all servers have these weights."""
        wait_until(lambda: (self.policy()["weight_version"] or "").startswith(path))
        wait_until(lambda: all(server["ready"] for server in self.policy()["servers"]))


@contextmanager
def fleet(model: Path, folder: Path, count: int, dialect: str = "vllm") -> Iterator[Fleet]:
    with ExitStack() as stack:
        trainer, sampler = launch(model, folder / "trainer"), launch(model, folder / "sampler")
        stack.callback(trainer.kill)
        stack.callback(sampler.kill)
        servers = [stack.enter_context(LoraServer(sampler.url, str(model), dialect)) for _ in range(count)]
        words = [word for server in servers for word in ("--base-url", f"{server.url}/v1")]
        process = Process(
            folder / "home",
            *("engine", "fleet", "--type", dialect, *words, "--folder", str(folder / "adapters")),
            *("--port", "0", "--service", trainer.url),
        )
        stack.callback(process.kill)
        url = process.until(r"fleet of \d on (http://\S+:\d+)")[1]
        yield Fleet(trainer, servers, process, url)


def train(client: tinker.TrainingClient, step: int) -> str:
    data = [datum(range(10 * step, 10 * step + 12 + index)) for index in range(3)]
    client.forward_backward(data, "cross_entropy").result()
    client.optim_step(tt.AdamParams(learning_rate=0.01)).result()
    path: str = client.save_weights_for_sampler(f"step-{step}").result().path
    return path


def test_servers_sample_the_newest_adapter_with_its_logprobs_and_its_name(
    model: Path, tmp_path: Path
) -> None:
    with fleet(model, tmp_path, count=2) as served:
        base = served.complete()
        assert base["metadata"]["weight_version"] == str(model)
        service = tinker.ServiceClient(base_url=served.trainer.url, api_key=KEY)
        client = service.create_lora_training_client(str(model), rank=4, seed=1)
        answers = [base]
        for step in (1, 2, 3):
            path = train(client, step)
            served.wait_for(path)
            answers.append(answer := served.complete())
            assert answer["metadata"]["weight_version"].startswith(f"{path}@")
            sampled, logprobs = answer["choices"][0]["token_ids"], answer["choices"][0]["logprobs"]
            own = service.create_sampling_client(model_path=path)
            whole = tt.ModelInput.from_ints([*PROMPT, *sampled])
            expected = own.compute_logprobs(whole).result()[len(PROMPT) :]
            assert logprobs["token_logprobs"] == pytest.approx(expected, abs=1e-4)
        texts = {json.dumps(answer["choices"][0]["logprobs"]["token_logprobs"]) for answer in answers}
        assert len(texts) == 4, "each version has its own logprobs"
        wait_until(lambda: all(len(server.adapters) == 2 for server in served.servers))
        assert all("step-1" in server.unloaded[0] for server in served.servers)
        service.close("success").result(timeout=30)
        served.process.process.send_signal(signal.SIGINT)
        assert served.process.wait() == 0, served.process.output
        assert served.process.output.endswith("stopped; " + STOPPED["engine fleet"] + "\n")


@pytest.mark.slow
def test_a_server_that_answers_with_other_weights_or_lost_them_is_not_believed(
    model: Path, tmp_path: Path
) -> None:
    with fleet(model, tmp_path, count=2) as served:
        service = tinker.ServiceClient(base_url=served.trainer.url, api_key=KEY)
        client = service.create_lora_training_client(str(model), rank=4, seed=1)
        path = train(client, 1)
        served.wait_for(path)
        first, second = served.servers
        first.adapters.clear()  # it was started again
        for _ in range(4):
            assert served.complete()["metadata"]["weight_version"].startswith(path)
        wait_until(lambda: len(first.adapters) == 1)
        first.answers_as = second.answers_as = "another"
        with pytest.raises(urllib.error.HTTPError) as refused:
            served.complete()
        assert refused.value.code == 503
        assert "and 'hermes-" in served.process.output and "was requested" in served.process.output
        first.answers_as = second.answers_as = None
        served.wait_for(path)
        assert served.complete()["metadata"]["weight_version"].startswith(path)
        service.close("success").result(timeout=30)


@pytest.mark.slow
def test_sglang_servers_get_the_adapter_by_its_name(model: Path, tmp_path: Path) -> None:
    body = {"input_ids": PROMPT, "sampling_params": {"max_new_tokens": 4}, "return_logprob": True}
    with fleet(model, tmp_path, count=1, dialect="sglang") as served:
        assert served.post("/generate", body)["meta_info"]["weight_version"] == str(model)
        service = tinker.ServiceClient(base_url=served.trainer.url, api_key=KEY)
        path = train(service.create_lora_training_client(str(model), rank=4, seed=1), 1)
        served.wait_for(path)
        meta = served.post("/generate", body)["meta_info"]
        assert meta["weight_version"].startswith(f"{path}@")
        assert len(meta["output_token_logprobs"]) == 4
        assert "step-1" in served.servers[0].sampled[-1]
        service.close("success").result(timeout=30)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_whose_environment_samples_at_a_fleet_trains_every_batch_once_and_knows_its_weights(
    model: Path, tmp_path: Path
) -> None:
    steps = 6
    with fleet(model, tmp_path, count=2) as served:
        parts = Parts(tmp_path / "home", served.trainer, model, steps)
        try:
            trainer = parts.trainer()
            sampling = ("--openai.base_url", f"{served.url}/v1", "--openai.server_type", "vllm")
            env = parts.env(steps - 1, settings=sampling)
            assert trainer.wait(600) == 0, trainer.output
            assert env.wait(120) == 0, env.output
            run = tmp_path / "home" / "runs" / "run"
            check_served(parts.url, trained_leases(run, steps))
            rows = metrics(run)
        finally:
            parts.close()
        for server in served.servers:
            assert any("step-" in name for name in server.sampled), "both servers sample trained weights"
    check_weights(run, tmp_path / "trainer")
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
