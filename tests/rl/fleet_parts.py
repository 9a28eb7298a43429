"""`hermes engine fleet` in a process of its own, in front of servers that are running already."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import tinker
from tinker import types as tt

from tests.engine.http.engine_process import Server, datum, launch
from tests.rl.parts import Parts
from tests.training.books import check_served, check_weights, trained_leases
from tests.training.world import Process, metrics
from tests.waiting import wait_until

PROMPT = [40, 41, 42, 43, 44, 45]


class FleetSample(NamedTuple):
    ids: list[int]
    logprobs: list[float]
    version: str


class Fleet(NamedTuple):
    trainer: Server
    """The engine that trains."""
    process: Process
    url: str
    dialect: str

    def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        data = json.dumps(body).encode()
        request = urllib.request.Request(self.url + path, data, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as response:
            answer: dict[str, Any] = json.load(response)
        return answer

    def complete(self, **fields: Any) -> dict[str, Any]:
        body = {"model": "policy", "prompt": PROMPT, "max_tokens": 8, "logprobs": 1, "temperature": 1.0}
        return self.post("/v1/completions", {**body, "return_token_ids": True, "seed": 1, **fields})

    def sample(self, n: int = 1, max_tokens: int = 8, **sampling: Any) -> list[FleetSample]:
        """With logprobs, at the path that takes and returns tokens."""
        if self.dialect == "vllm":
            answer = self.complete(n=n, max_tokens=max_tokens, seed=None, **sampling)
            version = answer["metadata"]["weight_version"]
            return [
                FleetSample(choice["token_ids"], choice["logprobs"]["token_logprobs"], version)
                for choice in answer["choices"]
            ]
        params = {"n": n, "max_new_tokens": max_tokens, **sampling}
        body = {"input_ids": PROMPT, "sampling_params": params, "return_logprob": True}
        answers: Any = self.post("/generate", body)
        metas = [answer["meta_info"] for answer in (answers if isinstance(answers, list) else [answers])]
        return [
            FleetSample(
                [token for _, token, *_ in meta["output_token_logprobs"]],
                [logprob for logprob, *_ in meta["output_token_logprobs"]],
                meta["weight_version"],
            )
            for meta in metas
        ]

    def policy(self) -> dict[str, Any]:
        with urllib.request.urlopen(f"{self.url}/v1/models", timeout=60) as response:
            metadata: dict[str, Any] = json.load(response)["data"][0]["metadata"]
        return metadata

    def wait_for(self, path: str) -> None:
        """Until all servers have these weights."""
        wait_until(lambda: (self.policy()["weight_version"] or "").startswith(path))
        wait_until(lambda: all(server["ready"] for server in self.policy()["servers"]))


@contextmanager
def fleet(model: Path, folder: Path, urls: Sequence[str], dialect: str) -> Iterator[Fleet]:
    """With an engine of its own that trains."""
    with ExitStack() as stack:
        trainer = launch(model, folder / "trainer")
        stack.callback(trainer.kill)
        words = [word for url in urls for word in ("--base-url", f"{url}/v1")]
        process = Process(
            folder / "home",
            *("engine", "fleet", "--type", dialect, *words, "--folder", str(folder / "adapters")),
            *("--port", "0", "--service", trainer.url),
        )
        stack.callback(process.kill)
        yield Fleet(trainer, process, process.until(r"fleet of \d on (http://\S+:\d+)")[1], dialect)


def run_at(group: Fleet, model: Path, folder: Path, steps: int, *settings: str) -> list[dict[str, Any]]:
    """A run whose environment samples at the fleet, of which every batch was trained once; its metrics."""
    parts = Parts(folder / "home", group.trainer, model, steps)
    try:
        trainer = parts.trainer()
        sampling = ("--openai.base_url", f"{group.url}/v1", "--openai.server_type", group.dialect)
        env = parts.env(steps - 1, settings=(*sampling, *settings))
        assert trainer.wait(600) == 0, trainer.output
        assert env.wait(120) == 0, env.output
        run = folder / "home" / "runs" / "run"
        check_served(parts.url, trained_leases(run, steps))
    finally:
        parts.close()
    check_weights(run, folder / "trainer")
    return metrics(run)


def train(client: tinker.TrainingClient, step: int) -> str:
    data = [datum(range(10 * step, 10 * step + 12 + index)) for index in range(3)]
    client.forward_backward(data, "cross_entropy").result()
    client.optim_step(tt.AdamParams(learning_rate=0.01)).result()
    path: str = client.save_weights_for_sampler(f"step-{step}").result().path
    return path


def engine_logprobs(service: tinker.ServiceClient, path: str, sampled: Sequence[int]) -> list[float | None]:
    """Of sampled tokens after PROMPT, by the engine that trained the weights."""
    whole = tt.ModelInput.from_ints([*PROMPT, *sampled])
    scores: list[float | None] = (
        service.create_sampling_client(model_path=path).compute_logprobs(whole).result()[len(PROMPT) :]
    )
    return scores
