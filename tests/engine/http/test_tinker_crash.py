"""kill -9, silence, a full disk, too many, a polite end: what was acknowledged is there, and nobody hangs."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import tinker

from hermes.training.start_weights import checkpoint_folder
from tests.cli.process import failure, hermes
from tests.engine.http.conftest import Start
from tests.engine.http.engine_process import KEY, TOKEN, Server, batch, launch, prompt
from tests.engine.http.tinker_runs import fetched, steps
from tests.waiting import wait_until

Connect = Callable[..., tinker.ServiceClient]


@dataclass(frozen=True)
class Survivor:
    """An engine started where another was killed at work, and what that one had acknowledged."""

    server: Server
    path: str
    sampler: str
    external: str
    losses: list[float]
    """Of the four steps after the checkpoint."""
    scores: list[float | None]
    """Of a prompt, under the sampler's weights."""


CLIENT_TIMEOUT_S = 8


@pytest.fixture(scope="module")
def survivor(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Survivor]:
    model, state_dir = str(tiny_folder), tmp_path_factory.mktemp("survivor")
    first = launch(tiny_folder, state_dir)
    client = tinker.ServiceClient(base_url=first.url, api_key=KEY)
    training = client.create_lora_training_client(model, rank=4, seed=9, user_metadata={"purpose": "survive"})
    steps(training, range(4))
    path = training.save_state("four", user_metadata={"step": "4"}).result().path
    sampler = training.save_weights_for_sampler("four").result().path
    external = training.save_weights_external("four").result().path
    losses = steps(training, range(4, 8))
    scores = client.create_sampling_client(model_path=sampler).compute_logprobs(prompt()).result()[1:]
    for number in range(8):  # the axe falls on a busy engine, in the middle of saving
        training.forward_backward(batch(2), "cross_entropy")
        training.save_state(f"cut-{number}")
    first.kill()
    client.holder.close()
    limits = ("--max-adapters", "2", "--client-timeout", str(CLIENT_TIMEOUT_S), "--host", "0.0.0.0")
    second = launch(tiny_folder, state_dir, *limits, HERMES_ENGINE_TOKEN=TOKEN)
    yield Survivor(second, path, sampler, external, losses, scores)
    second.kill()


def test_after_kill_9_every_checkpoint_is_there_and_the_curve_goes_on_the_same(
    survivor: Survivor, connect: Connect
) -> None:
    rest = tinker.RestClient(base_url=survivor.server.url, api_key=KEY)
    kept = {one.tinker_path: one for one in rest.list_user_checkpoints(limit=1000).result().checkpoints}
    assert {survivor.path, survivor.sampler, survivor.external} <= kept.keys()
    assert kept[survivor.path].user_metadata == {"step": "4"}
    run = rest.get_training_run_by_tinker_path(survivor.path).result()
    assert run.user_metadata == {"purpose": "survive"}
    client = connect(survivor.server)
    resumed = client.create_training_client_from_state_with_optimizer(survivor.path)
    assert steps(resumed, range(4, 8)) == pytest.approx(survivor.losses, rel=1e-6)
    sampler = client.create_sampling_client(model_path=survivor.sampler)
    assert sampler.compute_logprobs(prompt()).result()[1:] == pytest.approx(survivor.scores, abs=1e-5)
    urls = rest.get_external_weights_urls(survivor.external).result().urls  # signed by the new process
    state_dir = survivor.server.state_dir
    inside = checkpoint_folder(state_dir, survivor.sampler) / "adapter_model.safetensors"
    assert fetched(urls)["adapter_model.safetensors"] == inside.read_bytes()
    for path in (path for path in kept if "/cut-" in path):  # whatever is listed is whole
        resumed._load_state_impl(path, optimizer=True, weights_access_token=None).result()


def test_who_beats_or_polls_is_alive_and_who_is_silent_is_not(survivor: Survivor, model: str) -> None:
    server = survivor.server
    statuses, longest_gap_s = None, math.inf
    while longest_gap_s > CLIENT_TIMEOUT_S - 1:  # a busy machine kept this client silent too
        statuses, longest_gap_s = _outlive(server, model)
    assert statuses == (410, 200, 200)


def _outlive(server: Server, model: str) -> tuple[tuple[int, int, int], float]:
    """What three clients are answered once the silent one is forgotten: the silent, the one that sends
    heartbeats, the one that polls for a result. And the longest time in which the last two sent nothing."""
    sent_s = [time.monotonic()]
    silent, beating, polling = (server.post("create_session", {})["session_id"] for _ in range(3))
    asked = {"session_id": polling, "sampling_session_seq_id": 0, "base_model": model}
    sampler = server.post("create_sampling_session", asked)["sampling_session_id"]
    prompt = {"chunks": [{"type": "encoded_text", "tokens": [5, 6]}]}
    accepted = server.post("asample", {"sampling_session_id": sampler, "seq_id": 0, "prompt": prompt})

    def silence_is_noticed() -> bool:
        server.ask("POST", "/api/v1/session_heartbeat", {"session_id": beating})
        server.ask("POST", "/api/v1/retrieve_future", {"request_id": accepted["request_id"]})
        sent_s.append(time.monotonic())
        listed = server.ask("POST", "/api/v1/sessions/search", {"session_id": silent}).json()
        return bool(listed["sessions"][0]["status"]["type"] == "cancelled")

    wait_until(silence_is_noticed)
    gap_s = max(later - earlier for earlier, later in itertools.pairwise(sent_s))
    first, second, third = (
        server.ask("POST", "/api/v1/session_heartbeat", {"session_id": session}).status
        for session in (silent, beating, polling)
    )
    return (first, second, third), gap_s


def test_more_adapters_than_allowed_are_refused_until_one_goes(
    survivor: Survivor, connect: Connect, model: str
) -> None:
    server = survivor.server
    wait_until(lambda: server.metric("adapters") == 0)
    first, second = connect(server), connect(server)
    first.create_lora_training_client(model, rank=2)
    kept = second.create_lora_training_client(model, rank=2)
    with pytest.raises(tinker.RequestFailedError) as failed:
        second.create_lora_training_client(model, rank=2)
    assert failed.value.category.value == "server"
    assert kept.forward(batch(1), "cross_entropy").result().metrics["loss:sum"] > 0
    first.close("success").result()
    wait_until(lambda: server.metric("adapters") == 1)
    second.create_lora_training_client(model, rank=2)


def test_with_a_token_only_its_holders_are_answered(
    survivor: Survivor, tmp_path: Path, tiny_folder: Path
) -> None:
    server = survivor.server
    assert server.ask("GET", "/health", X_API_Key="tml-guess").status == 401
    assert server.ask("GET", "/health", X_API_Key=KEY).status == 200
    assert server.ask("GET", "/health", X_API_Key="", Authorization=f"Bearer {TOKEN}").status == 200
    assert server.ask("GET", "/health", X_API_Key="", Authorization="Bearer guess").status == 401
    assert server.ask("GET", "/api/v1/files/a/weights/b/c", X_API_Key="").status == 404
    shown = hermes(tmp_path, "engine", "models", "--url", server.url, env={"HERMES_ENGINE_TOKEN": TOKEN})
    assert str(tiny_folder) in shown.stdout
    refused = hermes(tmp_path, "engine", "adapters", "--url", server.url)
    assert refused.returncode == 1
    assert "a token is needed" in refused.stderr


ABANDONED = """
import os, sys, tinker
from tests.engine.http.engine_process import (batch)
client = tinker.ServiceClient(base_url=sys.argv[1], api_key=sys.argv[2])
training = client.create_lora_training_client(sys.argv[3], rank=2)
training.save_state("last").result()
print(training.model_id, flush=True)
os._exit(9)
"""


@pytest.mark.slow
def test_a_client_that_vanishes_frees_its_adapter_and_leaves_its_checkpoints(
    survivor: Survivor, connect: Connect, model: str
) -> None:
    server = survivor.server
    root = Path(__file__).parents[3]
    command = [sys.executable, "-c", ABANDONED, server.url, KEY, model]
    gone = subprocess.run(command, capture_output=True, text=True, cwd=root)
    model_id = gone.stdout.strip()
    assert gone.returncode == 9, gone.stderr
    wait_until(lambda: server.metric("adapters") == 0)
    answer = server.ask("POST", "/api/v1/get_info", {"model_id": model_id})
    assert answer.status == 400
    assert "for 8 s" in answer.json()["detail"]
    again = connect(server).create_training_client_from_state_with_optimizer(
        f"tinker://{model_id}/weights/last"
    )
    assert again.forward(batch(1), "cross_entropy").result().metrics["loss:sum"] > 0


def test_a_client_of_a_dead_engine_is_told_so_and_does_not_wait(shared: Server, model: str) -> None:
    for path, body, status in (
        ("session_heartbeat", {"session_id": "old"}, 410),
        ("retrieve_future", {"request_id": "old:train:0:3"}, 410),
        ("optim_step", {"model_id": "old:train:0", "seq_id": 4, "adam_params": {}}, 404),
        ("create_model", {"session_id": "old", "model_seq_id": 0, "base_model": model}, 404),
    ):
        answer = shared.ask("POST", f"/api/v1/{path}", body)
        assert (path, answer.status) == (path, status)
        assert answer.json()["detail"]


@pytest.mark.slow
def test_a_full_disk_fails_the_save_alone_and_leaves_nothing_half(
    start: Start, connect: Connect, small_disk: Path, tmp_path: Path, model: str
) -> None:
    (small_disk / "filler").write_bytes(bytes(700_000))
    server = start(small_disk / "state")
    client = connect(server)
    training = client.create_lora_training_client(model, rank=2, seed=1)
    kept = training.save_state("fits").result().path
    big = client.create_lora_training_client(model, rank=64, seed=1)
    for save in (big.save_state, big.save_weights_for_sampler, big.save_weights_external):
        with pytest.raises(tinker.RequestFailedError) as failed:
            save("too-big").result()
        assert failed.value.category.value == "server"
        assert "No space left" in str(failed.value)
        assert "internal error" not in str(failed.value)
    assert big.forward(batch(1), "cross_entropy").result().metrics["loss:sum"] > 0
    rest = tinker.RestClient(base_url=server.url, api_key=KEY)
    assert [one.tinker_path for one in rest.list_user_checkpoints().result().checkpoints] == [kept]
    assert list((small_disk / "state").rglob("*too-big*")) == []
    training.save_state("fits-too").result()
    with (small_disk / "more").open("wb", buffering=0) as more, pytest.raises(OSError, match="No space"):
        while True:
            more.write(bytes(4096))
    publishing = rest.publish_checkpoint_from_tinker_path(kept)  # the SDK asks again until there is room
    run, kind, name = kept.removeprefix("tinker://").split("/")
    refused = server.ask("POST", f"/api/v1/training_runs/{run}/checkpoints/{kind}/{name}/publish")
    assert (refused.status, refused.json()["detail"]) == (503, "disk error: No space left on device")
    (small_disk / "more").unlink()
    publishing.result()
    assert {one.tinker_path: one.public for one in rest.list_checkpoints(run).result().checkpoints}[kept]


def test_one_state_directory_serves_one_engine(shared: Server, tmp_path: Path, tiny_folder: Path) -> None:
    arguments = ["--model", str(tiny_folder), "--port", "0", "--state-dir", str(shared.state_dir)]
    error, fix = failure(hermes(tmp_path, "engine", "serve", *arguments), 1)
    assert "another engine keeps its checkpoints" in error
    assert "--state-dir" in fix


def test_a_polite_end_does_not_wait_for_those_who_poll(survivor: Survivor, model: str) -> None:
    """The last of this module: nothing is left to ask afterwards."""
    server = survivor.server
    session = server.post("create_session", {})["session_id"]
    asked = {"session_id": session, "model_seq_id": 0, "base_model": model, "lora_config": {"rank": 2}}
    server.post("create_model", asked)
    step = {"model_id": f"{session}:train:0", "seq_id": 5, "adam_params": {}}
    accepted = server.post("optim_step", step)  # waits for calls 1 to 4, which never come
    answers: list[int] = []

    def poll() -> None:
        body = {"request_id": accepted["request_id"]}
        answers.append(server.ask("POST", "/api/v1/retrieve_future", body).status)

    poller = threading.Thread(target=poll)
    poller.start()
    wait_until(lambda: server.metric("polls_held") == 1)
    assert server.stop() == 0
    poller.join()
    assert answers == [408]
