"""An environment and a trainer that know only the original's contract, over a whole run and a crash in it."""

from __future__ import annotations

import gzip
import http.client
import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.ports import free_port
from tests.rollouts.conftest import ENV, RUN, Client, Launch, group
from tests.rollouts.kill_load import start
from tests.waiting import wait_until

BATCH, GROUP, OFF_POLICY = 8, 2, 3


class Environment(threading.Thread):
    """Registers, polls, posts gzipped groups, pauses when told that enough waits; stops at the last step."""

    def __init__(self, client: Client, name: str, last_step: int) -> None:
        super().__init__()
        self.client, self.name, self.last_step = client, name, last_step
        self.sent = 0
        self.paused = 0
        self.most_waiting = 0
        self.env_id: int | None = None

    def run(self) -> None:
        while self.env_id is None:
            answer = self.tried(
                "POST", "/register-env", {**ENV, "desired_name": self.name, "group_size": GROUP}
            )
            self.env_id = answer.get("env_id")
            time.sleep(0.01)
        while True:
            status = self.tried("GET", "/status-env", {"env_id": self.env_id})
            if status["current_step"] >= self.last_step:
                return
            waiting = status["queue_size"] * GROUP
            self.most_waiting = max(self.most_waiting, waiting)
            if waiting >= OFF_POLICY * BATCH:
                self.paused += 1
                time.sleep(0.005)
                continue
            posted = group(GROUP, self.sent, env_id=self.env_id)
            if self.tried("POST", "/scored_data", posted)["status"] == "received":
                self.sent += 1

    def tried(self, method: str, path: str, body: Any) -> Any:
        """As the original's clients do, only that they would give up after three tries."""
        while True:
            try:
                answer = self.client.ask(
                    method, path, raw=gzip.compress(json.dumps(body).encode()), Content_Encoding="gzip"
                )
            except (OSError, http.client.HTTPException):
                time.sleep(0.02)
                continue
            assert answer.status == 200, answer
            return answer.json()


def train(client: Client, enough: Callable[[int], bool]) -> int:
    """Polls for batches until it has enough of them; returns how many it got."""
    batches = 0
    while not enough(batches):
        try:
            answer = client.get("/batch")
        except (OSError, http.client.HTTPException):
            time.sleep(0.02)
            continue
        assert answer.get("status") != "error"
        if not answer["batch"]:
            time.sleep(0.005)
            continue
        assert sum(len(item["tokens"]) for item in answer["batch"]) == BATCH
        assert all(item["overrides"] is None and item["env_id"] is not None for item in answer["batch"])
        batches += 1
    return batches


def test_a_run_with_two_environments_and_a_trainer_gets_to_its_last_step(launch: Launch) -> None:
    client = launch().client
    client.start(batch_size=BATCH)
    environments = [Environment(client, name, 30) for name in ("a", "b")]
    for environment in environments:
        environment.start()
    train(client, lambda batches: batches == 30)
    for environment in environments:
        environment.join()
    assert sorted(env.env_id or 0 for env in environments) == [0, 1]
    assert client.get("/status")["current_step"] == 30


def test_environments_pause_by_themselves_while_the_trainer_is_busy(launch: Launch) -> None:
    client = launch().client
    client.start(batch_size=BATCH)
    environment = Environment(client, "eager", 1)
    environment.start()
    wait_until(lambda: environment.paused >= 20)
    assert client.get("/status")["queue"]["sequences"] == OFF_POLICY * BATCH
    train(client, lambda batches: batches == 1)
    environment.join()
    assert environment.most_waiting == OFF_POLICY * BATCH


def test_a_run_goes_on_over_a_crash_of_the_server_with_the_same_environments(tmp_path: Path) -> None:
    port = free_port()
    client = Client(port)
    server = start(port, tmp_path)
    try:
        client.start(**{**RUN, "batch_size": BATCH})
        environment = Environment(client, "lasting", 35)
        environment.start()
        before = train(client, lambda batches: batches == 10)
        server.kill()
        server.wait()
        server = start(port, tmp_path)
        after = train(client, lambda batches: not environment.is_alive())
        status = client.get("/status")
    finally:
        server.kill()
        server.wait()
    twice = before + after - status["current_step"]
    assert twice in (0, 1), "only the batch served just before the crash may have been served again"
    assert [env["wandb_name"] for env in status["envs"]] == ["lasting_0"]
