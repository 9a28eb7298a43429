"""A fleet of one vLLM server against the engine's own sampler, with the same adapter, on the same machine.

    python bench/fleet.py MODEL_FOLDER --vllm "vllm serve" --output fleet.json [--vllm-flags "…"]
                          [--engine-flags "…"] [--requests 64] [--samples 4] [--new 64] [--steps 3]

The engine trains an adapter for a few steps on text of this repository and publishes it; then both sample the
same prompts with it, all requested at once: the engine, vLLM through `hermes engine fleet`, and vLLM alone.
Prompts are pieces of the documentation in the model's chat template. Three rounds, each with other prompts;
the first one of all warms up and is not reported. Every sampled sequence is then scored by the engine, as a
trainer does: `gap` is how far the sampler's logprobs are from these, in nats by token.

The fleet and both servers are on one machine; on one GPU they share it, one of them idle while the other
is measured.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import re
import shlex
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import tinker
import torch
from tinker import types as tt
from transformers import AutoTokenizer

from hermes.core import explicit_sampling
from hermes.core.processors import usable_processors

KEY = "tml-bench-of-the-fleet"
ROUNDS = 3
DOCUMENTS = Path(__file__).parent.parent / "docs"
PIECE = 600
"""Characters of a prompt: about 180 tokens, as the prompts of our environments have."""


@dataclass(frozen=True)
class Sample:
    prompt: list[int]
    ids: list[int]
    logprobs: list[float]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", help="folder with the weights and the tokenizer")
    parser.add_argument("--vllm", required=True, help="the command that starts it, such as 'vllm serve'")
    parser.add_argument("--vllm-flags", default="")
    parser.add_argument("--engine-flags", default="")
    for name, value in (("requests", 64), ("samples", 4), ("new", 64), ("steps", 3), ("rank", 16)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        engine = stack.enter_context(_engine(options, folder))
        server = stack.enter_context(_vllm(options))
        fleet = stack.enter_context(_fleet(engine, server, folder))
        report = _measure(options, engine, server, fleet)
    options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(report["summary"], indent=1))


def _measure(options: argparse.Namespace, engine: str, server: str, fleet: str) -> dict[str, Any]:
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    prompts = _prompts(tokenizer, options.requests * (ROUNDS + 1))
    service = tinker.ServiceClient(base_url=engine, api_key=KEY)
    path = _train(service, options, prompts)
    adapter = _wait_for(fleet, server, path)
    targets = {
        "engine": (f"{engine}/v1/completions", path),
        "fleet": (f"{fleet}/v1/completions", "policy"),
        "vllm": (f"{server}/v1/completions", adapter),
    }
    scorer = service.create_sampling_client(model_path=path)
    rounds: list[dict[str, Any]] = []
    for index in range(ROUNDS + 1):
        batch = prompts[index * options.requests : (index + 1) * options.requests]
        for name, (url, model) in targets.items():
            started = time.perf_counter()
            samples = asyncio.run(_sample(url, model, batch, options))
            seconds = time.perf_counter() - started
            tokens = sum(len(sample.ids) for sample in samples)
            row = {"round": index, "sampler": name, "tokens": tokens, "seconds": round(seconds, 3)}
            row |= {"tokens_s": round(tokens / seconds, 1), **_gaps(scorer, samples)}
            print(json.dumps(row), flush=True)
            rounds.append(row)
    measured = [row for row in rounds if row["round"]]
    return {
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.machine(),
        "cores": usable_processors(),
        "torch": torch.__version__,
        "commit": _commit(),
        "options": {name: str(value) for name, value in vars(options).items() if name != "output"},
        "rounds": rounds,
        "summary": {
            name: {
                field: [
                    round(function([row[field] for row in measured if row["sampler"] == name]), 6)
                    for function in (statistics.mean, min, max)
                ]
                for field in ("tokens_s", "gap_mean", "gap_p90", "gap_max", "bias")
            }
            for name in targets
        },
    }


def _train(service: tinker.ServiceClient, options: argparse.Namespace, prompts: Sequence[list[int]]) -> str:
    client = service.create_lora_training_client(options.model, rank=options.rank, seed=1)
    path = ""
    for step in range(1, options.steps + 1):
        data = [
            tt.Datum(
                model_input=tt.ModelInput.from_ints(ids[:-1]),
                loss_fn_inputs={"target_tokens": ids[1:], "weights": [1.0] * (len(ids) - 1)},  # type: ignore[dict-item]
            )
            for ids in prompts[:16]
        ]
        client.forward_backward(data, "cross_entropy").result()
        client.optim_step(tt.AdamParams(learning_rate=1e-3)).result()
        path = client.save_weights_for_sampler(f"step-{step}").result().path
    return path


def _wait_for(fleet: str, server: str, path: str) -> str:
    """Until the fleet has the weights; their name at vLLM."""
    while True:
        metadata = _get(f"{fleet}/v1/models")["data"][0]["metadata"]
        if (metadata["weight_version"] or "").startswith(path):
            return str(_get(f"{server}/v1/models")["data"][-1]["id"])
        time.sleep(0.2)


async def _sample(
    url: str, model: str, prompts: Sequence[list[int]], options: argparse.Namespace
) -> list[Sample]:
    fields = explicit_sampling({"model": model, "n": options.samples, "max_tokens": options.new})
    headers = {"Authorization": f"Bearer {KEY}"}
    limits = httpx2.Limits(max_connections=None)
    async with httpx2.AsyncClient(timeout=1200, limits=limits, headers=headers, trust_env=False) as http:

        async def request(prompt: list[int]) -> list[Sample]:
            body = {**fields, "prompt": prompt, "logprobs": 0, "return_token_ids": True}
            response = await http.post(url, json=body)
            response.raise_for_status()
            return [
                Sample(prompt, choice["token_ids"], choice["logprobs"]["token_logprobs"])
                for choice in response.json()["choices"]
            ]

        return [sample for samples in await asyncio.gather(*map(request, prompts)) for sample in samples]


def _gaps(scorer: tinker.SamplingClient, samples: Sequence[Sample]) -> dict[str, float]:
    """The sampler's logprobs minus the engine's."""
    futures = [scorer.compute_logprobs(tt.ModelInput.from_ints([*row.prompt, *row.ids])) for row in samples]
    differences = [
        stated - score
        for row, future in zip(samples, futures, strict=True)
        for stated, score in zip(row.logprobs, future.result()[len(row.prompt) :], strict=True)
        if score is not None
    ]
    absolute = sorted(map(abs, differences))
    return {
        "gap_mean": round(statistics.mean(absolute), 6),
        "gap_p90": round(absolute[int(0.9 * len(absolute))], 6),
        "gap_max": round(absolute[-1], 6),
        "bias": round(statistics.mean(differences), 6),
    }


def _prompts(tokenizer: Any, count: int) -> list[list[int]]:
    text = "\n".join(page.read_text(encoding="utf-8") for page in sorted(DOCUMENTS.glob("*.md")))
    starts = range(0, len(text) - PIECE, max(1, (len(text) - PIECE) // count))
    return [
        list(
            tokenizer.apply_chat_template(
                [{"role": "user", "content": f"Continue this text.\n\n{text[start : start + PIECE]}"}],
                add_generation_prompt=True,
                return_dict=False,
            )
        )
        for start in list(starts)[:count]
    ]


@contextmanager
def _engine(options: argparse.Namespace, folder: str) -> Iterator[str]:
    command = [sys.executable, "-m", "hermes", "engine", "serve", "--model", options.model, "--port", "0"]
    command += ["--state-dir", f"{folder}/state", *shlex.split(options.engine_flags)]
    with _announced(command) as url:
        yield url


@contextmanager
def _fleet(engine: str, server: str, folder: str) -> Iterator[str]:
    command = [sys.executable, "-m", "hermes", "engine", "fleet", "--base-url", server, "--service", engine]
    with _announced([*command, "--folder", f"{folder}/adapters", "--port", "0"]) as url:
        yield url


@contextmanager
def _announced(command: Sequence[str]) -> Iterator[str]:
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        address = re.search(r"http://\S+:\d+", process.stdout.readline())
        if address is None:
            raise SystemExit(f"{shlex.join(command)} did not start; its output is above")
        yield address[0]
    finally:
        process.terminate()
        process.wait()


@contextmanager
def _vllm(options: argparse.Namespace) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [*shlex.split(options.vllm), options.model, "--port", str(port), "--host", "127.0.0.1"]
    command += ["--enable-lora", "--max-lora-rank", str(options.rank)]
    command += ["--logprobs-mode", "processed_logprobs", *shlex.split(options.vllm_flags)]
    variables = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    process = subprocess.Popen(command, env={**os.environ, **variables}, stdout=sys.stderr)
    try:
        while process.poll() is None:
            try:
                _get(f"http://127.0.0.1:{port}/v1/models")
                break
            except OSError:
                time.sleep(1)
        else:
            raise SystemExit("vLLM did not start; its output is above")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait()


def _get(url: str) -> Any:
    with urllib.request.urlopen(url, timeout=30) as response:
        return json.load(response)


def _commit() -> str:
    run = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return run.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
