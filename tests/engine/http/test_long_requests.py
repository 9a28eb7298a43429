"""Requests of 8,192 tokens on a real server: heartbeats and small requests are answered meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest
import tinker

from tests.engine.http.engine_process import KEY, Server, datum, launch, make_tiny, prompt, tokens
from tests.engine.tiny import tiny_model
from tests.waiting import wait_until

LENGTH = 8192
SMALL_REQUESTS = 2
pytestmark = pytest.mark.timeout(900)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = make_tiny(tmp_path_factory.mktemp("models") / "long")
    tiny_model("llama", max_position_embeddings=LENGTH + 64).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def server(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = launch(folder, tmp_path_factory.mktemp("engine"))
    yield server
    server.kill()


@pytest.fixture
def client(server: Server) -> Iterator[tinker.ServiceClient]:
    client = tinker.ServiceClient(base_url=server.url, api_key=KEY)
    yield client
    client.close("success").result()


Prepare = Callable[[Server, tinker.ServiceClient, str], Callable[[], int]]
"""Makes ready for a long request, and returns the function that sends it: how many tokens were answered."""


def post(server: Server, path: str, body: dict[str, Any]) -> Any:
    answer = httpx.post(f"{server.url}{path}", json=body, headers={"X-API-Key": KEY}, timeout=None)
    assert answer.status_code == 200, answer.text
    return answer.json()


def generation(server: Server, client: tinker.ServiceClient, model: str) -> Callable[[], int]:
    body = {"input_ids": tokens(LENGTH, 1), "sampling_params": {"max_new_tokens": 1}}
    return lambda: len(post(server, "/generate", body)["output_ids"])


def scored_completion(server: Server, client: tinker.ServiceClient, model: str) -> Callable[[], int]:
    body = {"model": model, "prompt": tokens(LENGTH, 2), "max_tokens": 1, "echo": True, "logprobs": 1}
    return lambda: len(post(server, "/v1/completions", body)["choices"][0]["logprobs"]["token_logprobs"])


def scoring(server: Server, client: tinker.ServiceClient, model: str) -> Callable[[], int]:
    sampler = client.create_sampling_client(base_model=model)
    return lambda: len(sampler.compute_logprobs(prompt(LENGTH, 3)).result())


def training(server: Server, client: tinker.ServiceClient, model: str) -> Callable[[], int]:
    adapter = client.create_lora_training_client(model, rank=2)
    data = [datum(tokens(LENGTH, seed)) for seed in (4, 5)]

    def train() -> int:
        outputs = adapter.forward_backward(data, "cross_entropy").result().loss_fn_outputs
        return sum(len(output["logprobs"].tolist()) for output in outputs)

    return train


@pytest.mark.parametrize(
    ("prepare", "answered"),
    [
        (generation, 1),
        pytest.param(scored_completion, LENGTH + 1, marks=pytest.mark.slow),
        pytest.param(scoring, LENGTH, marks=pytest.mark.slow),
        pytest.param(training, 2 * (LENGTH - 1), marks=pytest.mark.slow),
    ],
)
def test_small_requests_and_heartbeats_end_before_a_long_request_that_came_first(
    server: Server, client: tinker.ServiceClient, folder: Path, prepare: Prepare, answered: int
) -> None:
    session = server.post("create_session", {})["session_id"]
    send = prepare(server, client, str(folder))
    counts: list[int] = []
    ended: list[str] = []

    def send_long() -> None:
        try:
            counts.append(send())
        finally:
            ended.append("long")

    cached = server.metric("kv_tokens_used")
    thread = threading.Thread(target=send_long)
    thread.start()
    wait_until(lambda: ended or server.metric("training_waiting") or server.metric("kv_tokens_used") > cached)
    small = {"input_ids": tokens(6), "sampling_params": {"max_new_tokens": 2}}
    for _ in range(SMALL_REQUESTS):
        assert post(server, "/generate", small)["output_ids"]
        ended.append("small")
        assert server.ask("POST", "/api/v1/session_heartbeat", {"session_id": session}).status == 200
        ended.append("heartbeat")
    thread.join()
    assert ended == ["small", "heartbeat"] * SMALL_REQUESTS + ["long"]
    assert counts == [answered]
