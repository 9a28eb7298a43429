"""While a long prompt is sampled or trained, other clients of the engine get their answers."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import tinker

from tests.engine.http.engine_process import KEY, Server, datum, launch

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]
NAME = "hermes/smollm2"
LONG = [17 + index % 4000 for index in range(6000)]


@pytest.fixture(scope="module")
def bundled(bundled_home: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    server = launch(NAME, tmp_path_factory.mktemp("bundled"), HERMES_HOME=str(bundled_home))
    yield server
    server.kill()


def generate(server: Server, ids: list[int], max_tokens: int) -> Any:
    """Waits for as long as the machine needs."""
    body = json.dumps({"input_ids": ids, "sampling_params": {"max_new_tokens": max_tokens}}).encode()
    request = urllib.request.Request(f"{server.url}/generate", body, {"X-API-Key": KEY})
    with urllib.request.urlopen(request) as response:
        return json.load(response)


def heartbeat(server: Server, training: tinker.TrainingClient) -> int:
    session = training.model_id.partition(":")[0]
    return server.ask("POST", "/api/v1/session_heartbeat", {"session_id": session}).status


def test_short_requests_and_heartbeats_are_answered_while_a_long_prompt_is_computed(
    bundled: Server, connect: Callable[..., tinker.ServiceClient]
) -> None:
    training = connect(bundled).create_lora_training_client(NAME, rank=2)
    answered = 0
    with ThreadPoolExecutor(1) as thread:
        long = thread.submit(generate, bundled, LONG, 1)
        while not long.done():
            assert heartbeat(bundled, training) == 200
            assert generate(bundled, LONG[:20], 2)["meta_info"]["completion_tokens"] == 2
            answered += not long.done()
        assert long.result()["meta_info"]["prompt_tokens"] == len(LONG)
    assert answered >= 5, "they wait for a slice of the long prompt and not for all of it"


def test_heartbeats_are_answered_while_a_long_sequence_is_trained(
    bundled: Server, connect: Callable[..., tinker.ServiceClient]
) -> None:
    training = connect(bundled).create_lora_training_client(NAME, rank=2)
    lesson = [datum(LONG[:2000])]
    answered = 0
    with ThreadPoolExecutor(1) as thread:
        trained = thread.submit(lambda: training.forward_backward(lesson, "cross_entropy").result())
        while not trained.done():
            assert heartbeat(bundled, training) == 200
            answered += 1
        assert trained.result().metrics["loss:sum"] > 0
    assert answered >= 5
