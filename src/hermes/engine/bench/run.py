"""Measures the speed of generation and training against transformers' `generate` and a padded PEFT step.

    hermes engine bench [--json]      or, with nothing but torch, transformers and safetensors installed,
    python -m hermes.engine.bench.run MODEL_FOLDER [--json]

Both sides do the same work in the same run, one after the other, once to warm up and then `repeat` times; the
best time is reported. Generation: distinct random prompts, every sample runs to its full length, prefill is
included. Training: forward, backward and AdamW with LoRA rank 32 on all linear layers, loss on the
completions only; "shared" counts every completion with its own copy of the group's prompt. The GRPO step
samples two turns (the second after a tool result), trains on all of it and makes the new weights a policy;
the baseline calls `generate` twice, with its adapter unmerged, and then makes a padded step.

Both sides use the engine's dtype. Peak memory is that of the tensors on a GPU, and of the process on a CPU.
The measurements that need PEFT are skipped if it is not installed, and the report says so.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
import torch

from hermes.engine.bench.baseline import baseline_figures, missing_for_baseline
from hermes.engine.bench.workload import CPU_WORKLOAD, GRPO_STEP, BenchMeter, Figure, Workload, rollout_datum
from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
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


def bench(
    options: EngineOptions, load: Workload | None = None, *, baseline: bool = True
) -> dict[str, object]:
    """The report of both sides, as one JSON object."""
    engine = Engine(options)
    engine.start()
    device, dtype = engine.device, engine.dtype
    load = load or (Workload() if device.type == "cuda" else CPU_WORKLOAD)
    try:
        engine_results = engine_figures(engine, load)
        data = training_data(engine, load, shared=True)
    finally:
        engine.close()
    del engine
    baseline_results = baseline_figures(options.model, device, dtype, load, data) if baseline else []
    return {
        "device": torch.cuda.get_device_name()
        if device.type == "cuda"
        else f"cpu, {torch.get_num_threads()} threads",
        "torch": torch.__version__,
        "dtype": str(dtype).removeprefix("torch."),
        "model": options.model,
        "workload": asdict(load),
        "peak_gib_is": "tensors on the GPU" if device.type == "cuda" else "resident memory of the process",
        "left_out": missing_for_baseline() if baseline else "",
        "engine": [{**asdict(figure), "per_s": figure.per_s} for figure in engine_results],
        "transformers": [{**asdict(figure), "per_s": figure.per_s} for figure in baseline_results],
    }


def main(arguments: Sequence[str]) -> None:
    report = bench(EngineOptions(model=arguments[0]), baseline="--no-baseline" not in arguments)
    sys.stdout.write(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
