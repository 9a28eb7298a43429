"""How fast the engine generates and trains here, against transformers' `generate` and a padded PEFT step.

    hermes engine bench [--json]      or, with nothing but torch, transformers and safetensors installed,
    python -m hermes.engine.bench MODEL_FOLDER [--json]

Both sides do the same work in the same run, one after the other, once to warm up and then `repeat` times; the
best time counts. Generation: distinct random prompts, every sample runs to its full length, the prompts'
time included. Training: forward, backward and AdamW with LoRA rank 32 on all linear layers, loss on the
completions only; "shared" counts every completion with its own copy of the group's prompt. The GRPO step
samples two turns (the second after a tool's answer), trains on all of it and hands over the new weights.
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
from hermes.engine.types import AdamParams, Datum, Ints, LoraConfig, Loss, SampleRequest, SamplingParams


@dataclass(frozen=True, slots=True)
class Workload:
    """The sizes that the bench runs with."""

    batch: int = 512
    prompt: int = 211
    new: int = 128
    groups: int = 32
    group: int = 16
    shared: int = 80
    completion: int = 30
    repeat: int = 3
    train_micro_batch: int = 128
    """Of the padded baseline."""


CPU_WORKLOAD = Workload(
    batch=16, prompt=100, new=32, groups=2, group=8, shared=80, repeat=2, train_micro_batch=8
)


@dataclass(frozen=True, slots=True)
class Figure:
    what: str
    tokens: int
    seconds: float
    peak_gib: float

    @property
    def per_s(self) -> float:
        return self.tokens / self.seconds


def measure(what: str, tokens: int, work: Callable[[], None], repeat: int) -> Figure:
    """The best of `repeat` runs, after one that warms up."""
    work()
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    best = min(_timed(work) for _ in range(repeat))
    peak = torch.cuda.max_memory_allocated() / 2**30 if torch.cuda.is_available() else 0.0
    return Figure(what, tokens, best, peak)


def run(engine: Engine, load: Workload) -> list[Figure]:
    """The engine's own figures."""
    rng = np.random.default_rng(0)
    plain, shared = training_data(engine, load, shared=False), training_data(engine, load, shared=True)
    adapter = engine.create_adapter(LoraConfig(rank=32, seed=0)).result()
    one = Workload(batch=1, prompt=load.prompt, new=load.new)
    figures = [
        measure("generate", load.batch * load.new, lambda: generate(engine, rng, load), load.repeat),
        measure("generate at batch 1", one.new, lambda: generate(engine, rng, one), load.repeat),
        measure("train", _count(plain), lambda: train(engine, adapter, plain), load.repeat),
        measure("train, prompt shared", _count(shared), lambda: train(engine, adapter, shared), load.repeat),
    ]
    rollouts = load.groups * load.group
    figures.append(
        measure(
            "GRPO step of two turns", rollouts, lambda: grpo_step(engine, adapter, rng, load), load.repeat
        )
    )
    return figures


def generate(engine: Engine, rng: np.random.Generator, load: Workload) -> None:
    """`batch` prompts of their own, each continued by `new` tokens."""
    params = SamplingParams(max_tokens=load.new, stop=())
    prompts = rng.integers(3, engine.spec.vocab, (load.batch, load.prompt))
    futures = [engine.sample(None, SampleRequest(prompt, params)) for prompt in prompts]
    drawn = sum(len(sequence.tokens) for future in futures for sequence in future.result().sequences)
    if drawn != load.batch * load.new:
        raise AssertionError(f"{drawn} tokens were sampled, not {load.batch * load.new}")


def train(engine: Engine, adapter: str, data: Sequence[Datum]) -> None:
    engine.forward_backward(adapter, data, Loss("importance_sampling")).result()
    engine.optim_step(adapter, AdamParams(learning_rate=1e-5)).result()


def grpo_step(engine: Engine, adapter: str, rng: np.random.Generator, load: Workload) -> None:
    """Two turns of `groups` × `group` rollouts, one update, new weights for the sampler."""
    policy = engine.snapshot(adapter).result()
    params = SamplingParams(max_tokens=load.completion // 2, stop=())
    prompts = rng.integers(3, engine.spec.vocab, (load.groups, load.shared))
    first = [engine.sample(policy, SampleRequest(prompt, params, load.group)) for prompt in prompts]
    contexts: list[Ints] = []
    for prompt, future in zip(prompts, first, strict=True):
        for sequence in future.result().sequences:
            answer = rng.integers(3, engine.spec.vocab, 8)
            contexts.append(np.concatenate([prompt, sequence.tokens, answer]))
    second = [engine.sample(policy, SampleRequest(context, params)) for context in contexts]
    data = [
        _datum(np.concatenate([context, future.result().sequences[0].tokens]), load.shared, rng)
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
            mine = prompt if shared else rng.integers(3, vocab, load.shared)
            tokens = np.concatenate([mine, rng.integers(3, vocab, load.completion)])
            data.append(_datum(tokens, load.shared, rng))
    return data


def _datum(tokens: Ints, prompt: int, rng: np.random.Generator) -> Datum:
    advantages = np.full(len(tokens) - 1, rng.normal(), np.float32)
    advantages[: prompt - 1] = 0.0
    logprobs = np.where(advantages == 0, 0.0, -10.0).astype(np.float32)
    return Datum(tokens[:-1], {"target_tokens": tokens[1:], "logprobs": logprobs, "advantages": advantages})


def _count(data: Sequence[Datum]) -> int:
    return sum(len(datum.tokens) for datum in data)


def _timed(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return time.perf_counter() - began


def bench(
    options: EngineOptions, load: Workload | None = None, *, baseline: bool = True
) -> dict[str, object]:
    """Everything, as one JSON object."""
    from hermes.engine.bench_baseline import baseline_figures

    engine = Engine(options)
    engine.start()
    device = engine.device
    load = load or (Workload() if device.type == "cuda" else CPU_WORKLOAD)
    try:
        ours = run(engine, load)
        data = training_data(engine, load, shared=True)
    finally:
        engine.close()
    del engine
    theirs = baseline_figures(options.model, device, load, data) if baseline else []
    return {
        "device": torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"cpu, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "model": options.model,
        "workload": asdict(load),
        "engine": [{**asdict(figure), "per_s": figure.per_s} for figure in ours],
        "transformers": [{**asdict(figure), "per_s": figure.per_s} for figure in theirs],
    }


def main(arguments: Sequence[str]) -> None:
    report = bench(EngineOptions(model=arguments[0]), baseline="--no-baseline" not in arguments)
    sys.stdout.write(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
