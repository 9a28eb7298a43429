"""A gateway that is killed under load: no acknowledged call is lost, and none is stored twice."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPException
from pathlib import Path

import pytest

from hermes.config.load import Config
from hermes.core import StepKind
from tests.gateway.conftest import stored
from tests.gateway.requests import ROUTES, body_of
from tests.gateway.scripted import ScriptedProvider
from tests.waiting import wait_until

SEED = int(os.environ.get("HERMES_SEED") or random.SystemRandom().randrange(1 << 32))
CLIENTS = 6


@contextmanager
def serving(config: Config, provider: ScriptedProvider) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A gateway as a process of its own, which settles what is idle for 0.3 s."""
    words = ["record", "serve", "--port", "0", "--idle", "0.3", "--base-url", provider.base_url]
    for protocol in ROUTES:
        words += ["--protocol", protocol]
    child = subprocess.Popen(
        [sys.executable, "-m", "hermes", *words],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "HERMES_HOME": str(config.home)},
    )
    assert child.stdout is not None
    try:
        line = child.stdout.readline()
        match = re.search(r"http://[\d.]+:\d+", line)
        assert match is not None, line
        yield child, match[0]
    finally:
        child.kill()
        child.wait()
        child.stdout.close()


class Load:
    """Clients that converse, each in a session of its own, until their gateway is gone."""

    def __init__(self, draws: random.Random) -> None:
        self._draws = draws
        self._lock = threading.Lock()
        self._number = 0
        self.acknowledged: set[str] = set()

    def run(self, url: str, name: str) -> None:
        protocol = self._draws.choice(list(ROUTES))
        stream = self._draws.random() < 0.7
        headers = {"content-type": "application/json"}
        headers |= {"x-session-id": name} if self._draws.random() < 0.5 else {}
        base = url if "x-session-id" in headers or self._draws.random() < 0.3 else f"{url}/r/{name}"
        history: list[dict[str, str]] = []
        while True:
            with self._lock:
                self._number += 1
                marker = f"m{self._number}"
            history.append({"role": "user", "content": f"say {marker}"})
            body = body_of(protocol, stream=stream)
            body["input" if protocol == "responses" else "messages"] = history
            request = urllib.request.Request(
                f"{base}/v1/{ROUTES[protocol]}", json.dumps(body).encode(), headers
            )
            try:
                with urllib.request.urlopen(request) as response:
                    data = response.read()
            except (OSError, HTTPException):
                return
            assert marker.encode() in data
            with self._lock:
                self.acknowledged.add(marker)
            history.append({"role": "assistant", "content": f"answer {marker}"})
            if len(history) > 12:
                history.clear()


def kill_at_random_moments(config: Config, kills: int) -> None:
    print("seed", SEED)
    draws = random.Random(SEED)
    load = Load(draws)
    with ScriptedProvider() as provider:
        for kill in range(kills):
            with serving(config, provider) as (child, url):
                clients = [
                    threading.Thread(target=load.run, args=(url, f"session-{kill}-{index}"))
                    for index in range(CLIENTS)
                ]
                for client in clients:
                    client.start()
                target = len(load.acknowledged) + draws.randrange(60)
                wait_until(lambda: len(load.acknowledged) >= target)  # noqa: B023  it is called here
                time.sleep(draws.random() * 0.05)
                child.send_signal(signal.SIGKILL)
                for client in clients:
                    client.join()
        with serving(config, provider) as (child, _):  # settles what is left, and ends in order
            child.terminate()
            assert child.wait() == 0
    answers = Counter(
        step.message.content.removeprefix("answer ")
        for trajectory in stored(config)
        for step in trajectory.steps
        if step.kind is StepKind.MODEL and not step.message.content.endswith("answer ")
    )
    assert load.acknowledged, "no call was answered before a kill"
    assert {marker for marker in load.acknowledged if answers[marker] != 1} == set()
    assert [marker for marker, count in answers.items() if count > 1] == []
    assert not any(path.is_dir() for path in (config.home / "recordings").iterdir())
    print(len(load.acknowledged), "acknowledged calls")


def test_killed_four_times(config: Config) -> None:
    kill_at_random_moments(config, 4)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_killed_two_hundred_times(config: Config) -> None:
    kill_at_random_moments(config, int(os.environ.get("HERMES_KILLS") or 200))


def test_what_a_killed_process_left_is_settled_once_however_often_that_is_begun(
    config: Config, tmp_path: Path
) -> None:
    """Killed between storing and deleting, a recording is read again, and nothing is stored twice."""
    from hermes.gateway.journal import Recording
    from hermes.gateway.service import Settling, recordings_dir
    from tests.gateway.conftest import gateway
    from tests.gateway.requests import post

    with ScriptedProvider() as provider, gateway(config, provider.url) as recording:
        post(f"{recording.url}/v1/messages", body_of("messages"))
        (journal,) = config.home.rglob("*.jsonl")
        copy = recordings_dir(config) / "left" / journal.name
        copy.parent.mkdir()
        copy.write_bytes(journal.read_bytes())
    (trajectory,) = stored(config)
    settled = Settling(config).run((Recording(copy),))
    assert settled.trajectories == (trajectory.header.id,)
    assert len(stored(config)) == 1 and not copy.exists()
