"""Weights by name over the OpenAI face: adapters, aliases that move, and clients that hang up."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import tinker
from tinker import types as tt

from tests.cli.process import hermes
from tests.engine.http.conftest import Start
from tests.engine.http.engine_process import KEY, TOKEN, Server, batch, launch, tokens
from tests.waiting import wait_until

IDS = tokens(6, seed=21)
GREEDY = {"max_new_tokens": 16, "temperature": 0}


def generate(server: Server, model: str | None = None) -> Any:
    named = {} if model is None else {"model": model}
    answer = server.ask("POST", "/generate", {"input_ids": IDS, "sampling_params": GREEDY, **named})
    assert answer.status == 200, answer
    return answer.json()


def version(server: Server, model: str | None = None) -> str:
    said: str = generate(server, model)["meta_info"]["weight_version"]
    return said


class Trainer:
    """Hands over new weights, unlike any before, again and again."""

    def __init__(self, client: tinker.ServiceClient, model: str, **metadata: str) -> None:
        self.client = client.create_lora_training_client(
            model, rank=4, seed=3, user_metadata=metadata or None
        )

    def save(self, name: str, alias: str | None = None) -> str:
        self.client.forward_backward(batch(seed=len(name)), "cross_entropy")
        self.client.optim_step(tt.AdamParams(learning_rate=2e-2)).result()
        metadata = {"alias": alias} if alias else None
        path: str = self.client.save_weights_for_sampler(name, user_metadata=metadata).result().path
        return path


@pytest.fixture
def trainer(client: tinker.ServiceClient, model: str) -> Trainer:
    return Trainer(client, model)


def test_an_adapter_answers_under_its_name_while_the_base_answers_under_its_own(
    shared: Server, model: str, trainer: Trainer, client: tinker.ServiceClient
) -> None:
    path = trainer.save("beside")
    params = tt.SamplingParams(max_tokens=16, temperature=0.0)
    prompt = tt.ModelInput.from_ints(IDS)
    expected = {
        path: client.create_sampling_client(model_path=path).sample(prompt, 1, params).result(),
        model: client.create_sampling_client(base_model=model).sample(prompt, 1, params).result(),
    }
    with ThreadPoolExecutor(16) as threads:
        names = [path, model] * 16
        answers = list(threads.map(lambda name: generate(shared, name), names))
    for name, answer in zip(names, answers, strict=True):
        assert answer["output_ids"] == expected[name].sequences[0].tokens
        assert answer["meta_info"]["weight_version"].partition("@")[0] == name
    assert answers[0]["output_ids"] != answers[1]["output_ids"]


def test_every_name_is_listed_and_means_what_it_says(
    shared: Server, model: str, client: tinker.ServiceClient
) -> None:
    trainer = Trainer(client, model, policy="run-name")
    path = trainer.save("listed", alias="policy:listed")
    sampler = trainer.client.save_weights_and_get_sampling_client()
    listed = {one["id"]: one for one in shared.ask("GET", "/v1/models").json()["data"]}
    assert {model, path, "policy:listed", "run-name", "policy"} <= set(listed)
    assert listed[path]["parent"] == model
    assert listed[model]["parent"] is None
    for name in (path, "policy:listed", "run-name", "policy", model):
        assert listed[name]["metadata"]["weight_version"] == version(shared, name)
    assert version(shared, "policy:listed").startswith(f"{path}@")
    assert version(shared, "run-name") == version(shared, "policy") == version(shared)
    assert version(shared, "policy") != version(shared, "policy:listed")
    one = shared.ask("GET", f"/v1/models/{path}").json()
    assert (one["id"], one["metadata"]) == (path, listed[path]["metadata"])
    assert shared.ask("GET", "/v1/models/nobody").status == 404
    del sampler


def test_an_alias_moves_in_the_middle_of_traffic_and_every_answer_says_what_it_came_from(
    shared: Server, trainer: Trainer
) -> None:
    paths = [trainer.save("step-0", alias="policy:moving")]
    heard: list[list[Any]] = [[], [], []]
    ended = threading.Event()

    def ask(mine: list[Any]) -> None:
        while not ended.is_set():
            mine.append(generate(shared, "policy:moving"))

    def each_has_heard_of(path: str) -> bool:
        return all(mine and mine[-1]["meta_info"]["weight_version"].startswith(f"{path}@") for mine in heard)

    with ThreadPoolExecutor(3) as threads:
        asking = [threads.submit(ask, mine) for mine in heard]
        for step in range(1, 4):
            wait_until(lambda: each_has_heard_of(paths[-1]))
            paths.append(trainer.save(f"step-{step}", alias="policy:moving"))
            assert version(shared, "policy:moving").startswith(f"{paths[-1]}@")
        ended.set()
        for one in asking:
            one.result()
    expected = {path: generate(shared, path)["output_ids"] for path in paths}
    assert len({tuple(ids) for ids in expected.values()}) == 4
    for mine in heard:
        came_from = [answer["meta_info"]["weight_version"].partition("@")[0] for answer in mine]
        assert [answer["output_ids"] for answer in mine] == [expected[path] for path in came_from]
        assert came_from == sorted(came_from, key=paths.index)


@pytest.mark.slow
def test_aliases_survive_a_crash(
    start: Start, tmp_path: Path, model: str, connect: Callable[..., tinker.ServiceClient]
) -> None:
    server = start(tmp_path / "state")
    client = tinker.ServiceClient(base_url=server.url, api_key=KEY)
    trainer = Trainer(client, model, policy="of-the-run")
    trainer.save("a", alias="policy:mine")
    kept = trainer.save("bb", alias="policy:mine")
    newest = trainer.save("ccc")
    before = {name: generate(server, name) for name in ("policy:mine", "of-the-run", "policy")}
    assert before["policy:mine"]["output_ids"] != before["policy"]["output_ids"]
    server.kill()
    again = start(tmp_path / "state")
    for name, answer in before.items():
        now = generate(again, name)
        assert now["output_ids"] == answer["output_ids"]
        assert now["meta_info"]["weight_version"] == answer["meta_info"]["weight_version"]
    assert version(again, "policy:mine").startswith(f"{kept}@")
    assert version(again, "policy").startswith(f"{newest}@")


NO_ALIASES = ["", "tinker://a/weights/b", "x" * 201, "two\nlines", "a:train:0", "a:sample:12"]


@pytest.mark.parametrize("alias", NO_ALIASES)
def test_an_alias_that_cannot_be_one_is_refused_and_nothing_is_saved(trainer: Trainer, alias: str) -> None:
    with pytest.raises(tinker.RequestFailedError, match="cannot be an alias"):
        trainer.client.save_weights_for_sampler("refused", user_metadata={"alias": alias}).result()
    assert trainer.save("refused")


def test_a_run_cannot_take_the_name_of_anything_else(client: tinker.ServiceClient, model: str) -> None:
    for alias in (*NO_ALIASES, model):
        with pytest.raises(tinker.BadRequestError, match="alias"):
            client.create_lora_training_client(model, rank=2, user_metadata={"policy": alias})


def test_the_base_models_name_cannot_be_an_alias(trainer: Trainer, model: str) -> None:
    with pytest.raises(tinker.RequestFailedError, match="that is the base model"):
        trainer.client.save_weights_for_sampler("refused", user_metadata={"alias": model}).result()


LONG = {"n": 16, "max_new_tokens": 240, "sampling_seed": 8, "temperature": 1.0}


def send(server: Server, body: dict[str, Any]) -> socket.socket:
    """A request whose answer nobody has read yet."""
    data = json.dumps(body).encode()
    address = urlsplit(server.url)
    connection = socket.create_connection((address.hostname, address.port))
    head = f"POST /generate HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Length: {len(data)}\r\n"
    connection.sendall(f"{head}Authorization: Bearer {TOKEN}\r\n\r\n".encode() + data)
    return connection


@pytest.fixture(scope="module")
def quiet(tiny_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server that nobody else asks."""
    server = launch(tiny_folder, tmp_path_factory.mktemp("quiet"), "--max-length", "256")
    yield server
    server.kill()


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_hangs_up_takes_its_samples_with_it(quiet: Server, stream: bool) -> None:
    body = {"input_ids": IDS, "sampling_params": LONG}
    answers = quiet.ask("POST", "/generate", body).json()
    all_tokens = sum(len(answer["output_ids"]) for answer in answers)
    before = quiet.metric("sampled_tokens_total")
    assert before >= all_tokens > 1000
    with send(quiet, {**body, "stream": stream}) as connection:
        wait_until(lambda: quiet.metric("sampled_tokens_total") > before)
        if stream:
            assert connection.recv(20).startswith(b"HTTP/1.1 200")
    wait_until(lambda: quiet.metric("sampling_running") + quiet.metric("sampling_waiting") == 0)
    assert quiet.metric("sampled_tokens_total") - before < all_tokens
    assert generate(quiet)["output_ids"]


def test_the_command_line_lists_what_can_be_asked_for(
    shared: Server, model: str, trainer: Trainer, tmp_path: Path
) -> None:
    path = trainer.save("cli", alias="policy:cli")
    shown = hermes(tmp_path, "engine", "models", "--json", "--url", shared.url)
    names = [one["id"] for one in json.loads(shown.stdout)]
    assert {model, path, "policy:cli"} <= set(names)
    text = hermes(tmp_path, "engine", "models", "--url", shared.url).stdout
    assert "policy:cli" in text
