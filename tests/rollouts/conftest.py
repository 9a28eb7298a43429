"""Real servers on free ports, and clients that speak to them as environments and trainers do."""

from __future__ import annotations

import gzip
import http.client
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

RUN: dict[str, Any] = {
    "wandb_group": "group",
    "wandb_project": "project",
    "batch_size": 8,
    "max_token_len": 512,
    "checkpoint_dir": "/checkpoints",
    "save_checkpoint_interval": 100,
    "starting_step": 0,
    "num_steps": 1000,
}
ENV: dict[str, Any] = {"max_token_length": 512, "desired_name": "env", "weight": 1.0, "group_size": 2}
KEYS = (
    "tokens",
    "masks",
    "scores",
    "advantages",
    "ref_logprobs",
    "messages",
    "generation_params",
    "inference_logprobs",
    "overrides",
    "group_overrides",
    "images",
    "env_id",
    "distill_token_ids",
    "distill_logprobs",
)


def group(size: int = 2, mark: int = 0, **more: Any) -> dict[str, Any]:
    """A group of `size` sequences whose every token is `mark`."""
    return {
        "tokens": [[mark] * 3] * size,
        "masks": [[-100, mark, mark]] * size,
        "scores": [0.5] * size,
        **more,
    }


def marks(batch: list[dict[str, Any]]) -> list[int]:
    return [item["tokens"][0][0] for item in batch]


class Response(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    """Plain HTTP, a fresh connection for each request, as `requests.get` makes it."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(
        self, method: str, path: str, body: Any = None, *, raw: bytes | None = None, **headers: str
    ) -> Response:
        data = raw if raw is not None else None if body is None else json.dumps(body).encode()
        sent = {"Content-Type": "application/json"} if data is not None else {}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, data, sent)
            answer = connection.getresponse()
            content = answer.read()
            got = {name.lower(): value for name, value in answer.getheaders()}
            if got.get("content-encoding") == "gzip":
                content = gzip.decompress(content)
            return Response(answer.status, got, content)
        finally:
            connection.close()

    def get(self, path: str, **headers: str) -> Any:
        answer = self.ask("GET", path, **headers)
        assert answer.status == 200, answer
        return answer.json()

    def post(self, path: str, body: Any, **headers: str) -> Any:
        answer = self.ask("POST", path, body, **headers)
        assert answer.status == 200, answer
        return answer.json()

    def register(self, **changes: Any) -> Any:
        return self.post("/register", {**RUN, **changes})

    def start(self, **changes: Any) -> None:
        """Registers a trainer that has asked for its first batch."""
        self.register(**changes)
        assert self.batch() is None

    def add_env(self, **changes: Any) -> int:
        answer = self.post("/register-env", {**ENV, **changes})
        assert answer["status"] == "success"
        return int(answer["env_id"])

    def status_env(self, env_id: int) -> Any:
        answer = self.ask("GET", "/status-env", {"env_id": env_id})
        assert answer.status == 200, answer
        return answer.json()

    def batch(self, query: str = "") -> Any:
        return self.get(f"/batch{query}")["batch"]

    def reset(self) -> None:
        assert self.ask("GET", "/reset_data").body == b"Reset successful"


class Server(NamedTuple):
    process: subprocess.Popen[str]
    client: Client

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """A polite end; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout=30)


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "hermes", "api", *arguments]


def environment(**variables: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
    return {**kept, "PYTHONUNBUFFERED": "1", **variables}


Launch = Callable[..., Server]


@pytest.fixture(scope="module")
def launch() -> Iterator[Launch]:
    """Starts servers; each is gone at the end of the module."""
    started: list[subprocess.Popen[str]] = []

    def start(*arguments: str, state_dir: Path | None = None, **variables: str) -> Server:
        where = ("--state-dir", str(state_dir)) if state_dir else ()
        process = subprocess.Popen(
            command("--port", "0", *where, *arguments),
            stdout=subprocess.PIPE,
            text=True,
            env=environment(**variables),
        )
        started.append(process)
        assert process.stdout is not None
        announced = re.search(r"http://\S+:(\d+)", process.stdout.readline())
        assert announced, process.wait()
        return Server(process, Client(int(announced[1])))

    yield start
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


@pytest.fixture(scope="module")
def shared(launch: Launch) -> Client:
    return launch().client


@pytest.fixture
def api(shared: Client) -> Client:
    """A server as it is when it has just started."""
    shared.reset()
    return shared
