"""Real processes to train with: the engine with a tiny model, the trajectory API, an environment of ours."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import tinker

from tests.cli import warm
from tests.engine.http.engine_process import KEY

PROMPT = (5, 6, 7)


class Process:
    """`hermes …` in a process group of its own, with its output kept."""

    def __init__(self, home: Path, *arguments: str, env: Mapping[str, str] | None = None) -> None:
        kept = {name: os.environ[name] for name in ("PATH", "HOME", "LANG", "TMPDIR") if name in os.environ}
        self.log = home / f"process-{random.getrandbits(48):012x}.log"
        home.mkdir(parents=True, exist_ok=True)
        with self.log.open("w") as log:
            own = {"HERMES_HOME": str(home), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
            output = log.fileno()
            self.process = warm.start(
                arguments, {**kept, **own, **(env or {})}, stdout=output, stderr=output, own_session=True
            )

    @property
    def output(self) -> str:
        return self.log.read_text()

    def wait(self, timeout_s: float = 120) -> int:
        return self.process.wait(timeout_s)

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)

    def until(self, words: str) -> re.Match[str]:
        """Waits for the words in the output."""
        while True:
            found = re.search(words, self.output)
            if found:
                return found
            if self.process.poll() is not None:
                found = re.search(words, self.output)
                assert found, f"ended with {self.process.returncode}:\n{self.output}"
                return found
            time.sleep(0.02)


def start_api(home: Path, port: int = 0) -> tuple[Process, str]:
    process = Process(home, "api", "--port", str(port), "--state-dir", str(home / "api"))
    return process, process.until(r"http://127\S+:\d+")[0].rstrip(".,")


def ask(url: str, method: str, path: str, body: Any = None, *, text: bool = False) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} if data else {}
    request = urllib.request.Request(url + path, data, headers, method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return answer.read().decode() if text else json.load(answer)


def when_there(url: str, method: str, path: str, body: Any = None) -> Any:
    """The answer, once somebody answers."""
    while True:
        try:
            return ask(url, method, path, body)
        except (urllib.error.URLError, ConnectionError):
            time.sleep(0.05)


def group(
    tokens: Sequence[Sequence[int]], logprobs: Sequence[Sequence[float]], scores: Sequence[float], **more: Any
) -> dict[str, Any]:
    """Answers after PROMPT, as an environment posts them."""
    before = len(PROMPT)
    return {
        "tokens": [[*PROMPT, *answer] for answer in tokens],
        "masks": [[*[-100] * before, *answer] for answer in tokens],
        "inference_logprobs": [[*[1.0] * before, *values] for values in logprobs],
        "scores": list(scores),
        **more,
    }


class Environment:
    """Samples from the engine, with whatever the newest published weights are, and posts groups."""

    def __init__(self, engine_url: str, api_url: str, group_size: int = 4) -> None:
        self.api_url = api_url
        self._service = tinker.ServiceClient(base_url=engine_url, api_key=KEY)
        self._rest = tinker.RestClient(base_url=engine_url, api_key=KEY)
        self.group_size = group_size
        self.temperature = 1.0
        self._samplers: dict[str, Any] = {}
        self._old = set(self._published())
        self._seed = 0

    def close(self) -> None:
        self._service.close("success").result(timeout=30)

    def newest(self) -> str | None:
        """The newest published weights that were not there when the environment came."""
        found = [path for path in self._published() if path not in self._old]
        return found[-1] if found else None

    def _published(self) -> list[str]:
        found = self._rest.list_user_checkpoints(limit=1000).result().checkpoints
        mine = [one for one in found if "/sampler_weights/step-" in one.tinker_path]
        return [one.tinker_path for one in sorted(mine, key=lambda one: one.time)]

    def rollouts(self, path: str, change: Callable[[dict[str, Any]], None] | None = None) -> dict[str, Any]:
        """One group, sampled with these weights."""
        if path not in self._samplers:
            self._samplers[path] = self._service.create_sampling_client(model_path=path)
        self._seed += 1
        params = tinker.SamplingParams(max_tokens=6, temperature=self.temperature, seed=self._seed, stop=[])
        prompt = tinker.ModelInput.from_ints(list(PROMPT))
        answer = self._samplers[path].sample(prompt, self.group_size, params).result()
        tokens = [list(one.tokens) for one in answer.sequences]
        made = group(
            tokens,
            [list(one.logprobs) for one in answer.sequences],
            [preference(one) for one in tokens],
            overrides=[{"policy_version": path} for _ in tokens],
            generation_params={"temperature": self.temperature},
        )
        if change is not None:
            change(made)
        return made

    def post(self, made: dict[str, Any]) -> None:
        when_there(self.api_url, "POST", "/scored_data", made)

    def forget(self) -> None:
        """What is published by now is not sampled any more."""
        self._old = set(self._published())

    def feed_until(
        self, done: Callable[[], bool], groups: int, change: Callable[[dict[str, Any]], None] | None = None
    ) -> None:
        """In lock-step with the trainer: so many groups from each published weights, and none twice.

        Which weights sample what is then no matter of timing, and a run makes the same steps every time.
        """
        last = None
        while not done():
            path = self.newest()
            if path is None or path == last:
                time.sleep(0.02)
                continue
            last = path
            for _ in range(groups):
                self.post(self.rollouts(path, change))


def preference(answer: Sequence[int]) -> float:
    """Dense and learnable for a random model: the share of even tokens."""
    return sum(token % 2 == 0 for token in answer) / len(answer)


def metrics(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
