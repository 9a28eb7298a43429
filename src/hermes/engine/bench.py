"""Measures the speed of generation and training on this machine.

    hermes engine bench [--json]      or, with nothing but torch, transformers and safetensors installed,
    python -m hermes.engine.bench MODEL_FOLDER

The work is done once to warm up and then `repeat` times; the best time is reported. Generation: distinct
random prompts, every sample runs to its full length, prefill is included. Training: forward, backward and
AdamW with LoRA rank 32 on all linear layers, loss on the completions only; "shared" counts every completion
with its own copy of the group's prompt. The GRPO step samples two turns (the second after a tool result),
trains on all of it and makes the new weights a policy. Peak memory is that of the tensors on a GPU, and of
the process on a CPU. bench/engine_baseline.py measures the same work of transformers and PEFT.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch

from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.memory import peak_bytes, reset_peak
from hermes.engine.types import AdamParams, Datum, Ints, LoraConfig, Loss, SampleRequest, SamplingParams


def engine_figures(engine: Engine, load: Workload) -> list[Figure]:
    rng = np.random.default_rng(0)
    plain, shared = training_data(engine, load, shared=False), training_data(engine, load, shared=True)
    adapter = engine.create_adapter(LoraConfig(rank=32, seed=0)).result()
    single = Workload(batch=1, prompt=load.prompt, new=load.new)
    measure = BenchMeter(engine.device, load.repeat).measure
    return [
        measure("generate", load.batch * load.new, lambda: generate(engine, rng, load)),
        measure("generate at batch 1", single.new, lambda: generate(engine, rng, single)),
        measure("train", _token_count(plain), lambda: train(engine, adapter, plain)),
        measure("train, prompt shared", _token_count(shared), lambda: train(engine, adapter, shared)),
        measure(GRPO_STEP, load.rollouts, lambda: grpo_step(engine, adapter, rng, load)),
    ]


def generate(engine: Engine, rng: np.random.Generator, load: Workload) -> None:
    """Samples `new` tokens for each of `batch` distinct prompts."""
    params = SamplingParams(max_tokens=load.new, stop=())
    prompts = rng.integers(3, engine.spec.vocab, (load.batch, load.prompt))
    futures = [engine.sample(None, SampleRequest(prompt, params)) for prompt in prompts]
    sampled = sum(len(sequence.tokens) for future in futures for sequence in future.result().sequences)
    if sampled != load.batch * load.new:
        raise AssertionError(f"{sampled} tokens were sampled, not {load.batch * load.new}")


def train(engine: Engine, adapter: str, data: Sequence[Datum]) -> None:
    engine.forward_backward(adapter, data, Loss("importance_sampling")).result()
    engine.optim_step(adapter, AdamParams(learning_rate=1e-5)).result()


def grpo_step(engine: Engine, adapter: str, rng: np.random.Generator, load: Workload) -> None:
    """Samples two turns of `groups` × `group` rollouts and trains on them with one optimizer step."""
    policy = engine.snapshot(adapter).result()
    params = SamplingParams(max_tokens=load.turn_tokens, stop=())
    prompts = rng.integers(3, engine.spec.vocab, (load.groups, load.shared))
    first = [engine.sample(policy, SampleRequest(prompt, params, load.group)) for prompt in prompts]
    contexts: list[Ints] = []
    for prompt, future in zip(prompts, first, strict=True):
        for sequence in future.result().sequences:
            tool_result = rng.integers(3, engine.spec.vocab, load.answer)
            contexts.append(np.concatenate([prompt, sequence.tokens, tool_result]))
    second = [engine.sample(policy, SampleRequest(context, params)) for context in contexts]
    data = [
        rollout_datum(np.concatenate([context, future.result().sequences[0].tokens]), load.shared, rng)
        for context, future in zip(contexts, second, strict=True)
    ]
    train(engine, adapter, data)
    engine.drop_policy(policy)


def training_data(engine: Engine, load: Workload, *, shared: bool) -> list[Datum]:
    rng = np.random.default_rng(1)
    vocab = engine.spec.vocab
    data = []
    for _ in range(load.groups):
        prompt = rng.integers(3, vocab, load.shared)
        for _ in range(load.group):
            own_prompt = prompt if shared else rng.integers(3, vocab, load.shared)
            tokens = np.concatenate([own_prompt, rng.integers(3, vocab, load.completion)])
            data.append(rollout_datum(tokens, load.shared, rng))
    return data


def _token_count(data: Sequence[Datum]) -> int:
    return sum(len(datum.tokens) for datum in data)


def bench(options: EngineOptions, load: Workload | None = None) -> dict[str, object]:
    """The report as one JSON object."""
    engine = Engine(options)
    engine.start()
    device, dtype = engine.device, engine.dtype
    load = load or (Workload() if device.type == "cuda" else CPU_WORKLOAD)
    try:
        figures = engine_figures(engine, load)
    finally:
        engine.close()
    on_gpu = device.type == "cuda"
    return {
        "device": torch.cuda.get_device_name() if on_gpu else f"cpu, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "model": options.model,
        "workload": asdict(load),
        "peak_gib_is": "tensors on the GPU" if on_gpu else "resident memory of the process",
        "engine": [{**asdict(figure), "per_s": figure.per_s} for figure in figures],
    }


GRPO_STEP = "GRPO step of two turns"


@dataclass(frozen=True, slots=True)
class Workload:
    """The sizes of the benchmark's work."""

    batch: int = 512
    prompt: int = 211
    new: int = 128
    groups: int = 32
    group: int = 16
    shared: int = 80
    completion: int = 30
    answer: int = 8
    """Tokens of a tool result between the two turns of a GRPO step."""
    repeat: int = 3

    @property
    def turn_tokens(self) -> int:
        """Sampled tokens of one of the two turns."""
        return self.completion // 2

    @property
    def rollouts(self) -> int:
        return self.groups * self.group


CPU_WORKLOAD = Workload(batch=16, prompt=100, new=32, groups=2, group=8, shared=80, repeat=2)


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    """The name of the measurement."""
    tokens: int
    seconds: float
    peak_gib: float

    @property
    def per_s(self) -> float:
        return self.tokens / self.seconds


@dataclass(frozen=True, slots=True)
class BenchMeter:
    device: torch.device
    repeat: int

    def measure(self, name: str, tokens: int, work: Callable[[], None]) -> Figure:
        """The best of `repeat` runs, after a warm-up run."""
        work()
        reset_peak(self.device)
        best = min(self._run_s(work) for _ in range(self.repeat))
        return Figure(name, tokens, best, peak_bytes(self.device) / 2**30)

    def _run_s(self, work: Callable[[], None]) -> float:
        began = time.perf_counter()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began


def rollout_datum(tokens: Ints, prompt_tokens: int, rng: np.random.Generator) -> Datum:
    """An RL datum with a random advantage on every token after the prompt."""
    advantages = np.full(len(tokens) - 1, rng.normal(), np.float32)
    advantages[: prompt_tokens - 1] = 0.0
    logprobs = np.where(advantages == 0, 0.0, -10.0).astype(np.float32)
    return Datum(tokens[:-1], {"target_tokens": tokens[1:], "logprobs": logprobs, "advantages": advantages})


if __name__ == "__main__":
    sys.stdout.write(json.dumps(bench(EngineOptions(sys.argv[1])), indent=2) + "\n")
