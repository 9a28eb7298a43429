"""How fast the engine generates and trains here, against transformers' `generate` and a padded PEFT step.

    hermes engine bench [--json]      or, with nothing but torch, transformers and safetensors installed,
    python -m hermes.engine.bench.run MODEL_FOLDER [--json]

Both sides do the same work in the same run, one after the other, once to warm up and then `repeat` times; the
best time counts. Generation: distinct random prompts, every sample runs to its full length, the prompts'
time included. Training: forward, backward and AdamW with LoRA rank 32 on all linear layers, loss on the
completions only; "shared" counts every completion with its own copy of the group's prompt. The GRPO step
samples two turns (the second after a tool's answer), trains on all of it and hands over the new weights; the
other side calls `generate` twice, with its adapter as it is, and then makes a padded step.

Both sides use the engine's dtype. Peak memory is that of the tensors on a GPU, and of the process on a CPU.
What needs PEFT is left out, and said to be, where that is not installed.
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

GRPO_STEP = "GRPO step of two turns"


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
    answer: int = 8
    """Tokens of a tool's answer, between the two turns of a GRPO step."""
    repeat: int = 3
    train_micro_batch: int = 128
    """Of the padded baseline."""

    @property
    def turn(self) -> int:
        """Sampled tokens of one of two turns."""
        return self.completion // 2

    @property
    def rollouts(self) -> int:
        return self.groups * self.group


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


@dataclass(frozen=True, slots=True)
class BenchMeter:
    device: torch.device
    repeat: int

    def measure(self, what: str, tokens: int, work: Callable[[], None]) -> Figure:
        """The best of `repeat` runs, after one that warms up."""
        work()
        reset_peak(self.device)
        best = min(self._timed(work) for _ in range(self.repeat))
        return Figure(what, tokens, best, peak_bytes(self.device) / 2**30)

    def _timed(self, work: Callable[[], None]) -> float:
        began = time.perf_counter()
        work()
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter() - began


def run(engine: Engine, load: Workload) -> list[Figure]:
    """The engine's own figures."""
    rng = np.random.default_rng(0)
    plain, shared = training_data(engine, load, shared=False), training_data(engine, load, shared=True)
    adapter = engine.create_adapter(LoraConfig(rank=32, seed=0)).result()
    one = Workload(batch=1, prompt=load.prompt, new=load.new)
    measure = BenchMeter(engine.device, load.repeat).measure
    return [
        measure("generate", load.batch * load.new, lambda: generate(engine, rng, load)),
        measure("generate at batch 1", one.new, lambda: generate(engine, rng, one)),
        measure("train", _count(plain), lambda: train(engine, adapter, plain)),
        measure("train, prompt shared", _count(shared), lambda: train(engine, adapter, shared)),
        measure(GRPO_STEP, load.rollouts, lambda: grpo_step(engine, adapter, rng, load)),
    ]


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
    params = SamplingParams(max_tokens=load.turn, stop=())
    prompts = rng.integers(3, engine.spec.vocab, (load.groups, load.shared))
    first = [engine.sample(policy, SampleRequest(prompt, params, load.group)) for prompt in prompts]
    contexts: list[Ints] = []
    for prompt, future in zip(prompts, first, strict=True):
        for sequence in future.result().sequences:
            answer = rng.integers(3, engine.spec.vocab, load.answer)
            contexts.append(np.concatenate([prompt, sequence.tokens, answer]))
    second = [engine.sample(policy, SampleRequest(context, params)) for context in contexts]
    data = [
        datum_of(np.concatenate([context, future.result().sequences[0].tokens]), load.shared, rng)
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
            data.append(datum_of(tokens, load.shared, rng))
    return data


def datum_of(tokens: Ints, prompt: int, rng: np.random.Generator) -> Datum:
    advantages = np.full(len(tokens) - 1, rng.normal(), np.float32)
    advantages[: prompt - 1] = 0.0
    logprobs = np.where(advantages == 0, 0.0, -10.0).astype(np.float32)
    return Datum(tokens[:-1], {"target_tokens": tokens[1:], "logprobs": logprobs, "advantages": advantages})


def _count(data: Sequence[Datum]) -> int:
    return sum(len(datum.tokens) for datum in data)


def bench(
    options: EngineOptions, load: Workload | None = None, *, baseline: bool = True
) -> dict[str, object]:
    """Everything, as one JSON object."""
    from hermes.engine.bench.baseline import baseline_figures, needs_peft

    engine = Engine(options)
    engine.start()
    device, dtype = engine.device, engine.dtype
    load = load or (Workload() if device.type == "cuda" else CPU_WORKLOAD)
    try:
        ours = run(engine, load)
        data = training_data(engine, load, shared=True)
    finally:
        engine.close()
    del engine
    theirs = baseline_figures(options.model, device, dtype, load, data) if baseline else []
    return {
        "device": torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"cpu, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "model": options.model,
        "workload": asdict(load),
        "peak_gib_is": "tensors on the GPU" if device.type == "cuda" else "resident memory of the process",
        "left_out": needs_peft() if baseline else "",
        "engine": [{**asdict(figure), "per_s": figure.per_s} for figure in ours],
        "transformers": [{**asdict(figure), "per_s": figure.per_s} for figure in theirs],
    }


def main(arguments: Sequence[str]) -> None:
    report = bench(EngineOptions(model=arguments[0]), baseline="--no-baseline" not in arguments)
    sys.stdout.write(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
