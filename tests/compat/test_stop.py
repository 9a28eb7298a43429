"""A signal to a serving environment: real processes, work in every stage, and where all of it is then."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.compat.serving import flags, groups_in
from tests.compat.world import SUMS, end, item_of
from tests.fakes.provider import FakeProvider, Reply, hang, held, text
from tests.ports import free_port
from tests.rollouts.conftest import Client
from tests.rollouts.kill_load import start
from tests.waiting import wait_until

Api = tuple[Client, "subprocess.Popen[str]"]
Serve = Callable[..., "subprocess.Popen[str]"]

BLOCKING = """
import time
import sys
sys.path.insert(0, {folder!r})
from sums import SumsEnv


class BlockingEnv(SumsEnv):
    async def collect_trajectories(self, item):
        if item["number"] == 2:
            print("blocking", flush=True)
            time.sleep(600)
        return await super().collect_trajectories(item)
"""


@pytest.fixture
def api(tmp_path: Path) -> Iterator[Api]:
    """A server whose trainer has asked for its first batch, and takes no other."""
    port = free_port()
    process = start(port, tmp_path / "state")
    client = Client(port)
    client.start(batch_size=4)
    yield client, process
    process.kill()
    process.wait()


@pytest.fixture
def serve(api: Api, bundled_home: Path, tmp_path: Path) -> Iterator[Serve]:
    """Runs `hermes env serve`; its log goes to serve.log."""
    running: list[subprocess.Popen[str]] = []

    def run(model: FakeProvider, file: Path = SUMS, **settings: Any) -> subprocess.Popen[str]:
        names = ("PATH", "HOME", "LANG", "TMPDIR", "HF_ENDPOINT")
        kept = {name: os.environ[name] for name in names if name in os.environ}
        settings = {"total_steps": 1000, "max_batches_offpolicy": 50, **settings}
        settings["data_path_to_save_groups"] = tmp_path / "groups.jsonl"
        with (tmp_path / "serve.log").open("w") as log:
            given = flags(api[0].port, model.base_url, **settings)
            command = [sys.executable, "-m", "hermes", "env", "serve", str(file), *given]
            environ = {**kept, "HERMES_HOME": str(bundled_home), "OMP_NUM_THREADS": "1"}
            process = subprocess.Popen(
                command, env=environ, cwd=tmp_path, stdout=subprocess.PIPE, stderr=log, text=True
            )
        running.append(process)
        return process

    yield run
    for process in running:
        process.kill()
        process.wait()


def by_item(replies: dict[int, Reply]) -> FakeProvider:
    """Answers by the number of the item that is asked about; nothing at all about those not in the table."""

    def answer(request: dict[str, Any]) -> Reply:
        return replies.get(asked_about(request), hang(600))

    return FakeProvider(answer)


def asked_about(request: dict[str, Any]) -> int:
    found = re.search(r"item (\d+)", request["messages"][-1]["content"])
    assert found, request
    return int(found[1])


def items_asked(model: FakeProvider) -> set[int]:
    return {asked_about(request.json) for request in model.posts if "item" in str(request.json)}


def queued(client: Client) -> int:
    return int(client.get("/status")["queue"]["groups"])


def test_a_signal_delivers_what_is_made_or_soon_is_and_counts_the_rest(
    api: Api, serve: Serve, tmp_path: Path
) -> None:
    client, _ = api
    third = threading.Event()
    with by_item({1: text("3"), 2: text("4"), 3: held(third, text("5"))}) as model:
        env = serve(model, max_num_workers=4, stop_patience_s=3)
        wait_until(lambda: items_asked(model) == {1, 2, 3, 4, 5, 6} and queued(client) == 2)
        env.send_signal(signal.SIGTERM)
        wait_until(lambda: "stopping: " in (tmp_path / "serve.log").read_text())
        third.set()
        code, _, _ = end(env)
    log, status = (tmp_path / "serve.log").read_text(), client.get("/status")
    assert code == 0, log
    assert items_asked(model) == {1, 2, 3, 4, 5, 6}, "work was begun after the signal"
    assert "3 groups completed, 3 dropped (stopped); 3 sent" in log
    assert "stopped; groups that were sent are at the trajectory API; the same command serves again" in log
    assert status["queue"]["groups"] == 3 and not [one for one in status["envs"] if one["connected"]]
    kept = groups_in(tmp_path / "groups.jsonl")
    assert sorted(map(item_of, kept)) == [1, 2, 3] and all(len(one["tokens"]) == 2 for one in kept)
    assert {item_of(one) for one in client.get("/batch")["batch"]} == {1, 2}, "whole, and in their order"
    assert not (tmp_path / "groups.unsent.jsonl").exists()


def test_a_tokenizer_that_a_silent_hub_withholds_does_not_delay_the_end(
    api: Api, serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "serve.log"
    with socket.create_server(("127.0.0.1", 0)) as hub, by_item({1: text("3")}) as model:
        monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{hub.getsockname()[1]}")
        env = serve(model, max_num_workers=1, tokenizer_name="acme/absent")
        connection, _ = hub.accept()
        with connection:
            env.send_signal(signal.SIGTERM)
            code, _, _ = end(env)
    assert code == 0 and "stopped; groups that were sent" in log.read_text(), log.read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("signals", "patience_s"), [(1, 1), (2, 600)])
def test_what_no_api_takes_any_more_is_in_a_file_when_the_signals_have_ended_it(
    signals: int, patience_s: float, api: Api, serve: Serve, tmp_path: Path
) -> None:
    client, server = api
    log, kept = tmp_path / "serve.log", tmp_path / "groups.jsonl"
    second = threading.Event()
    with by_item({1: text("3"), 2: held(second, text("4"))}) as model:
        env = serve(model, max_num_workers=2, stop_patience_s=patience_s)
        wait_until(lambda: items_asked(model) == {1, 2, 3} and queued(client) == 1)
        server.kill()
        server.wait()
        second.set()
        wait_until(lambda: len(groups_in(kept)) == 2)
        for _ in range(signals):
            env.send_signal(signal.SIGTERM)
            wait_until(lambda: "stopping: " in log.read_text())
        code, _, _ = end(env)
    assert code == 0, log.read_text()
    assert "1 dropped (stopped); 1 sent" in log.read_text()
    (unsent,) = groups_in(tmp_path / "groups.unsent.jsonl")
    assert item_of(unsent) == 2 and len(unsent["tokens"]) == 2
    assert "1 posts could not be delivered; they are in " in log.read_text()


@pytest.mark.slow
def test_code_that_never_gives_way_does_not_outlive_the_second_signal(
    api: Api, serve: Serve, tmp_path: Path
) -> None:
    file = tmp_path / "blocking.py"
    file.write_text(BLOCKING.format(folder=str(SUMS.parent)))
    with by_item({1: text("3")}) as model:
        env = serve(model, file, max_num_workers=1)
        assert env.stdout is not None and "blocking" in env.stdout.readline()
        env.send_signal(signal.SIGTERM)
        env.send_signal(signal.SIGINT)
        code, _, _ = end(env)
    log = (tmp_path / "serve.log").read_text()
    assert code == 1 and "after the second signal" in log
    assert queued(api[0]) == 1


@pytest.mark.slow
def test_a_signal_before_anything_is_made_ends_it_as_well(api: Api, serve: Serve, tmp_path: Path) -> None:
    with by_item({}) as model:
        env = serve(model, rollout_server_url=f"http://127.0.0.1:{free_port()}")
        wait_until(lambda: any(request.json is None for request in model.requests))
        env.send_signal(signal.SIGINT)
        code, _, _ = end(env)
    log = (tmp_path / "serve.log").read_text()
    assert code == 0, log
    assert not items_asked(model)
