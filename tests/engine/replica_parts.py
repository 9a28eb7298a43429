"""What the tests of several engine processes share: data, requests, training runs and waiting."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.replicas.front import EngineFront
from hermes.engine.types import (
    AdamParams,
    Datum,
    LoraConfig,
    Loss,
    SampleRequest,
    SampleResult,
    SamplingParams,
    TrainOutput,
)
from tests.engine.sampling_parts import prompt

LORA = LoraConfig(rank=4, seed=7)
ADAM = AdamParams(learning_rate=0.02)
IMPORTANCE = Loss("importance_sampling")


def options(folder: Path) -> EngineOptions:
    return EngineOptions(str(folder), device="cpu", dtype="float32", kv_bytes=1 << 22)


def grpo_data(seed: int = 0, groups: int = 3, size: int = 4) -> list[Datum]:
    """Groups with a shared prompt each, as the trainer sends them."""
    rng = np.random.default_rng(seed)
    data = []
    for group in range(groups):
        beginning = prompt(20 + 5 * group, seed * 100 + group)
        for _ in range(size):
            ids = np.concatenate([beginning, rng.integers(3, 500, rng.integers(4, 12))])
            mask = (np.arange(len(ids) - 1) >= len(beginning) - 1).astype(np.float32)
            inputs = {
                "target_tokens": ids[1:],
                "logprobs": (-3 * mask).astype(np.float32),
                "advantages": (rng.normal() * mask).astype(np.float32),
            }
            data.append(Datum(ids[:-1], inputs))
    return data


def request(seed: int, tokens: int = 12, samples: int = 2) -> SampleRequest:
    params = SamplingParams(max_tokens=tokens, seed=seed, stop=())
    return SampleRequest(prompt(40, seed % 3), params, samples)


def texts(result: SampleResult) -> list[list[int]]:
    return [sequence.tokens.tolist() for sequence in result.sequences]


def train(
    engine: EngineFront | Engine,
    steps: int,
    folder: Path,
    during: Callable[[int], None] = lambda step: None,
) -> tuple[list[TrainOutput], Path]:
    """Outputs of every step, and the folder with the adapter and its optimizer.

    `during` is called while the gradients of a step are being computed.
    """
    adapter = engine.create_adapter(LORA).result()
    outputs = []
    for step in range(steps):
        computing = engine.forward_backward(adapter, grpo_data(step), IMPORTANCE)
        during(step)
        outputs.append(computing.result())
        engine.optim_step(adapter, ADAM).result()
    engine.save(adapter, folder, optimizer=True).result()
    engine.drop_adapter(adapter)
    return outputs, folder


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".safetensors"}


def wait_until(condition: Callable[[], bool]) -> None:
    """Long enough for a loaded machine to load a model."""
    deadline_s = time.monotonic() + 240
    while not condition():
        assert time.monotonic() < deadline_s, "it never happened"
        time.sleep(0.05)
