"""Sampling and training through `hermes engine serve --replicas N`, for several N, over the public SDK.

    python bench/replicas.py MODEL_FOLDER --output replicas.json [--replicas 1,2,1x2] [--device auto]
                             [--kv-gib 4]
                             [--requests 64] [--samples 8] [--prompt 200] [--new 64] [--steps 4]

Each N is a server of its own, on this machine; NxT has --tensor-parallel-size T as well. Sampling: distinct
random prompts, all requested at once, every sample runs to its full length. Training: `steps` calls of
forward_backward and optim_step on the same sequences, after one that warms up. The losses of those steps are
in the report: they show how close N workers are to one. The best round is reported; seconds include HTTP.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import tinker
import torch
from tinker import types as tt

from hermes.core.processors import usable_processors

TOKEN = "bench-of-replicas-token"
VOCABULARY = 30_000
RATE = 1e-3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", help="folder with the weights and the tokenizer")
    parser.add_argument("--replicas", default="1,2")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--kv-gib", default="4")
    for name, value in (("requests", 64), ("samples", 8), ("prompt", 200), ("new", 64), ("steps", 4)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    report: dict[str, Any] = {
        "machine": torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor(),
        "cores": usable_processors(),
        "torch": torch.__version__,
        "commit": _commit(),
        "options": {name: str(value) for name, value in vars(options).items() if name != "output"},
        "replicas": {},
    }
    for count in options.replicas.split(","):
        with tempfile.TemporaryDirectory() as state_dir:
            report["replicas"][count] = _measure(options, count, state_dir)
        options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
        print(count, json.dumps(report["replicas"][count]), flush=True)


def _measure(options: argparse.Namespace, count: str, state_dir: str) -> dict[str, Any]:
    replicas, _, ranks = count.partition("x")
    arguments = ["--model", options.model, "--port", "0", "--replicas", replicas, "--device", options.device]
    arguments += ["--tensor-parallel-size", ranks or "1"]
    arguments += ["--dtype", options.dtype, "--kv-gib", options.kv_gib, "--state-dir", state_dir]
    command = [sys.executable, "-m", "hermes", "engine", "serve", *arguments]
    environment = {**os.environ, "HERMES_ENGINE_TOKEN": TOKEN}
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    try:
        assert server.stdout is not None
        address = re.search(r"http://\S+:\d+", server.stdout.readline())
        if address is None:
            raise SystemExit(f"the engine with {count} replicas did not start; its output is above")
        return _rounds(options, tinker.ServiceClient(base_url=address[0], api_key=f"tml-{TOKEN}"))
    finally:
        server.terminate()
        server.wait()


def _rounds(options: argparse.Namespace, client: tinker.ServiceClient) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    training = client.create_lora_training_client(options.model, rank=16, seed=0)
    data = [_datum(rng, options.prompt) for _ in range(options.requests)]
    adam = tt.AdamParams(learning_rate=RATE)
    losses: list[float] = []

    def train() -> None:
        output = training.forward_backward(data, "cross_entropy").result()
        training.optim_step(adam).result()
        losses.append(output.metrics["loss:sum"])

    def sample() -> None:
        params = tt.SamplingParams(max_tokens=options.new, temperature=1.0, stop=[])
        prompts = [
            tt.ModelInput.from_ints(rng.integers(3, VOCABULARY, options.prompt).tolist())
            for _ in range(options.requests)
        ]
        answers = [sampler.sample(prompt, options.samples, params) for prompt in prompts]
        for answer in answers:
            for sequence in answer.result().sequences:
                assert len(sequence.tokens) == options.new, "a sample ended early"

    train()
    train_s = min(_seconds(train) for _ in range(options.steps))
    sampler = training.save_weights_and_get_sampling_client()
    sample()
    sample_s = min(_seconds(sample) for _ in range(2))
    return {
        "sampled tokens/s": round(options.requests * options.samples * options.new / sample_s, 1),
        "seconds a training step": round(train_s, 4),
        "trained tokens/s": round(options.requests * options.prompt / train_s, 1),
        "losses": losses,
    }


def _seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _datum(rng: np.random.Generator, length: int) -> tt.Datum:
    tokens = rng.integers(3, VOCABULARY, length + 1).tolist()
    weights = tt.TensorData(data=[1.0] * length, dtype="float32", shape=[length])
    targets = tt.TensorData(data=tokens[1:], dtype="int64", shape=[length])
    return tt.Datum(
        model_input=tt.ModelInput.from_ints(tokens[:-1]),
        loss_fn_inputs={"target_tokens": targets, "weights": weights},
    )


def _commit() -> str:
    answer = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return answer.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
