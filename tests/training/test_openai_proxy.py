"""A service that speaks Tinker only: the trainer offers what environments need, over the public SDK alone."""

from __future__ import annotations

import ast
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import httpx2
import pytest
import tinker

import hermes.training
from hermes.errors import HermesError
from hermes.training.distill import GenerateTeacher, TinkerTeacher
from hermes.training.service.client import ServiceConnection
from hermes.training.service.openai_proxy import OpenAIProxy, serve_proxy
from hermes.training.service.token_meter import TokenCounts, TokenMeter, read_tokens
from tests.engine.http.engine_process import KEY, Server, launch
from tests.training.proxy import proxy
from tests.training.world import PROMPT

SOURCE, TESTS = Path(hermes.training.__file__).parents[1], Path(__file__).parents[1]


@pytest.fixture(scope="module")
def service(engine: Server) -> Iterator[str]:
    """Our engine in the role of the managed service: nothing but the Tinker API."""
    with proxy(engine.url, only="/api/v1/") as url:
        assert httpx2.get(f"{url}/v1/models", trust_env=False).status_code == 404
        yield url


@pytest.fixture(scope="module")
def published(engine: Server, tiny: Path) -> str:
    client = tinker.ServiceClient(base_url=engine.url, api_key=KEY)
    training = client.create_lora_training_client(str(tiny), rank=4, seed=1)
    return str(training.save_weights_for_sampler("step-0").result().path)


@pytest.fixture(scope="module")
def face(
    service: str, published: str, tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[OpenAIProxy]:
    folder = tmp_path_factory.mktemp("face")
    with (
        closing(TokenMeter(folder)) as meter,
        serve_proxy(ServiceConnection(service, KEY), str(tiny), str(tiny), 0, meter) as made,
    ):
        made.set_policy(published)
        yield made


def post(face: OpenAIProxy, path: str, body: dict[str, Any]) -> httpx2.Response:
    return httpx2.post(face.url + path, json=body, trust_env=False, timeout=60)


def test_a_prompt_is_scored_by_the_service_as_a_teacher_is_asked_to(
    face: OpenAIProxy, service: str, published: str
) -> None:
    texts = [[*PROMPT, 300, 301], list(range(260, 280))]
    expected = TinkerTeacher(ServiceConnection(service, KEY), published).score(texts)
    for found, other in zip(GenerateTeacher(face.url, patience_s=20).score(texts), expected, strict=True):
        assert found == pytest.approx(other, abs=1e-5) and len(set(found)) > 2


def test_the_newest_weights_are_sampled_in_exact_tokens_and_named_in_the_answer(
    face: OpenAIProxy, published: str, engine: Server, tiny: Path
) -> None:
    params = {"max_new_tokens": 5, "temperature": 1.0, "sampling_seed": 3, "n": 2}
    body = {"input_ids": list(PROMPT), "sampling_params": params, "return_logprob": True}
    answers = post(face, "/generate", body).json()
    assert {one["meta_info"]["weight_version"] for one in answers} == {published}
    direct = httpx2.post(
        f"{engine.url}/generate",
        json={**body, "model": published},
        trust_env=False,
        headers={"X-API-Key": KEY},
    ).json()
    told = [one["meta_info"]["output_token_logprobs"] for one in answers]
    assert [one["output_ids"] for one in answers] == [one["output_ids"] for one in direct]
    assert told == [one["meta_info"]["output_token_logprobs"] for one in direct]


def test_openai_clients_get_text_alternatives_and_streams_too(face: OpenAIProxy, tiny: Path) -> None:
    names = [one["id"] for one in httpx2.get(f"{face.url}/v1/models", trust_env=False).json()["data"]]
    assert names == [str(tiny), "policy"]
    body = {"model": "policy", "prompt": "ab", "max_tokens": 4, "logprobs": 2, "seed": 1}
    whole = post(face, "/v1/completions", body).json()
    assert whole["usage"]["completion_tokens"] == 4
    assert all(len(top) in (2, 3) for top in whole["choices"][0]["logprobs"]["top_logprobs"])
    stream = post(face, "/v1/completions", {**body, "stream": True}).text
    assert stream.strip().endswith("data: [DONE]")


def test_what_is_asked_wrongly_is_refused_and_not_tried_again(face: OpenAIProxy) -> None:
    unknown = post(face, "/v1/completions", {"model": "gpt-5", "prompt": "x"})
    gone = post(face, "/v1/completions", {"model": "tinker://a/sampler_weights/b", "prompt": "x"})
    assert gone.status_code == 400 and "refused" in gone.json()["error"]["message"]
    assert unknown.status_code == 404 and "policy" in unknown.json()["error"]["message"]
    both = {"stop": ["a"], "stop_token_ids": [7], "max_new_tokens": 2}
    refused = post(face, "/generate", {"input_ids": [5], "sampling_params": both})
    assert refused.status_code == 400 and "not both" in refused.json()["error"]["message"]


@pytest.mark.slow
def test_a_service_that_was_started_anew_is_asked_again_and_answers(tiny: Path, tmp_path: Path) -> None:
    first = launch(tiny, tmp_path / "state")
    training = tinker.ServiceClient(base_url=first.url, api_key=KEY).create_lora_training_client(
        str(tiny), rank=4, seed=1
    )
    path = str(training.save_weights_for_sampler("step-0").result().path)
    body = {"input_ids": [5], "sampling_params": {"max_new_tokens": 1}}
    with (
        closing(TokenMeter(tmp_path)) as meter,
        serve_proxy(ServiceConnection(first.url, KEY), str(tiny), str(tiny), 0, meter) as face,
    ):
        face.set_policy(path)
        assert post(face, "/generate", body).status_code == 200
        first.kill()
        second = launch(tiny, tmp_path / "state", "--port", first.url.rpartition(":")[2])
        try:
            answers = [post(face, "/generate", body) for _ in range(2)]
        finally:
            second.kill()
    assert [one.status_code for one in answers] == [503, 200]
    assert answers[0].headers["Retry-After"]


def test_a_port_that_is_taken_is_said(service: str, face: OpenAIProxy, tiny: Path, tmp_path: Path) -> None:
    port = int(face.url.rpartition(":")[2])
    with (
        closing(TokenMeter(tmp_path)) as meter,
        pytest.raises(HermesError, match="it is taken"),
        serve_proxy(ServiceConnection(service, KEY), str(tiny), str(tiny), port, meter),
    ):
        pass


def test_tokens_are_counted_by_many_threads_and_outlive_the_counter(tmp_path: Path) -> None:
    with closing(TokenMeter(tmp_path)) as meter:

        def count() -> None:
            for _ in range(500):
                meter.count(prefill=2, sampled=1)

        workers = [threading.Thread(target=count) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
    with closing(TokenMeter(tmp_path)) as again:
        again.count(trained=5)
    assert read_tokens(tmp_path) == TokenCounts(4000, 2000, 5)


def _names_of_the_sdk(tree: ast.AST) -> Iterator[str]:
    """What a module takes from the SDK: imported modules, imported names, attributes of the package."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names if one.name.partition(".")[0] == "tinker")
        elif isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "tinker":
            yield from (f"{node.module}.{one.name}" for one in node.names)
        elif (
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tinker"
        ):
            yield f"tinker.{node.attr}"


def test_only_public_names_of_the_sdk_are_used() -> None:
    """By all of Hermes but the engine, which is the other side, and by these tests."""
    ours = [file for file in SOURCE.rglob("*.py") if "engine" not in file.relative_to(SOURCE).parts]
    tests = [file for package in ("training", "rl") for file in (TESTS / package).rglob("*.py")]
    public = {"tinker", "tinker.__all__", *(f"tinker.{name}" for name in tinker.__all__)}
    found = {
        (file.name, name)
        for file in (*ours, *tests)
        for name in _names_of_the_sdk(ast.parse(file.read_text()))
    }
    assert {"client.py", "openai_backend.py", "export.py"} <= {file for file, _ in found}
    assert {(file, name) for file, name in found if name not in public} == set()


def test_only_public_methods_of_the_sdks_clients_are_called() -> None:
    """Every method that the code calls on a client of the SDK is one that the SDK documents."""
    clients = (tinker.ServiceClient, tinker.TrainingClient, tinker.SamplingClient, tinker.RestClient)
    known = {name for client in clients for name in vars(client) if not name.startswith("_")}
    fields, variables = {"_service", "_training", "_rest", "_sampler"}, {"service", "client", "sampler"}
    called = set()
    files = (
        *(SOURCE / "training" / "service").glob("*.py"),
        SOURCE / "training" / "distill.py",
        SOURCE / "rl" / "weights" / "export.py",
    )
    for file in files:
        for node in ast.walk(ast.parse(file.read_text())):
            if not isinstance(node, ast.Attribute):
                continue
            holder = node.value
            if (isinstance(holder, ast.Attribute) and holder.attr in fields) or (
                isinstance(holder, ast.Name) and holder.id in variables
            ):
                called.add(node.attr)
    assert {"forward_backward", "optim_step", "sample", "compute_logprobs"} <= called
    assert called <= known
