"""How far the sampler's logprobs are from the trainer's at sampled tokens, and what `--exact` costs.

    python bench/exact.py MODEL_FOLDER --output exact.json [--modes default,exact] [--seeds 0,1,2]

Each seed trains an adapter with policy-gradient steps on its own fresh samples, as RL does: a snapshot
samples groups of answers to sums, and the training call scores the same tokens. Every step's |difference| of
logprobs goes into the figures. The reward is the share of digits in an answer, so that the adapter learns.
Then the engine's own bench measures the speed of each mode; transformers is not run. On a GPU it also adds up
the time that the kernels of each part ran ("gpu ms"): the host, which others may use, does not change it.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from hermes.engine.bench import (
    GRPO_STEP,
    Workload,
    engine_figures,
    generate,
    grpo_step,
    train,
    training_data,
)
from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.types import (
    AdamParams,
    Datum,
    Ints,
    LoraConfig,
    Loss,
    SampledSequence,
    SampleRequest,
    SamplingParams,
)

GROUPS, GROUP, TOKENS = 16, 16, 64
RATE = 3e-4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("model", help="folder with the weights and the tokenizer")
    parser.add_argument("--modes", default="default,exact")
    parser.add_argument("--seeds", default="0,1,2")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--no-speed", action="store_true")
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    report: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
        "torch": torch.__version__,
        "commit": _commit(),
        "groups": GROUPS,
        "group": GROUP,
        "max_tokens": TOKENS,
        "learning_rate": RATE,
        "modes": {},
    }
    for mode in options.modes.split(","):
        extra = {"exact": True} if mode == "exact" else {}
        with closing(Engine(EngineOptions(options.model, **extra))) as engine:
            engine.start()
            runs = {seed: _run(engine, seed, options.steps) for seed in map(int, options.seeds.split(","))}
            report["modes"][mode] = {"dtype": str(engine.dtype), "seeds": runs}
            if not options.no_speed:
                figures = engine_figures(engine, Workload())
                report["modes"][mode]["speed"] = {figure.what: figure.per_s for figure in figures}
                if torch.cuda.is_available():
                    report["modes"][mode]["gpu ms"] = _gpu_ms(engine, Workload())
        options.output.write_text(json.dumps(report, indent=1) + "\n")
        print(mode, json.dumps(_summary(report["modes"][mode])), flush=True)


def _gpu_ms(engine: Engine, load: Workload) -> dict[str, float]:
    """The time of the kernels of each part of the engine's bench, the least of three rounds."""
    rng = np.random.default_rng(0)
    adapter = engine.create_adapter(LoraConfig(rank=32, seed=0)).result()
    plain, shared = (training_data(engine, load, shared=shared) for shared in (False, True))
    single = Workload(batch=1, prompt=load.prompt, new=load.new)
    parts: dict[str, Callable[[], None]] = {
        "generate": lambda: generate(engine, rng, load),
        "generate at batch 1": lambda: generate(engine, rng, single),
        "train": lambda: train(engine, adapter, plain),
        "train, prompt shared": lambda: train(engine, adapter, shared),
        GRPO_STEP: lambda: grpo_step(engine, adapter, rng, load),
    }
    return {name: min(_kernel_ms(work) for _ in range(3)) for name, work in parts.items()}


def _kernel_ms(work: Callable[[], None]) -> float:
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        work()
        torch.cuda.synchronize()
    return round(sum(event.self_device_time_total for event in profiler.key_averages()) / 1e3, 2)


def _run(engine: Engine, seed: int, steps: int) -> list[dict[str, float]]:
    """One line of figures a step."""
    tokenizer = _tokenizer(engine)
    digits = np.array(
        [any(c.isdigit() for c in tokenizer.decode([token])) for token in range(engine.spec.vocab)]
    )
    rng = np.random.default_rng(seed)
    adapter = engine.create_adapter(LoraConfig(rank=32, seed=seed)).result()
    lines = []
    for step in range(steps):
        began_s = time.perf_counter()
        policy = engine.snapshot(adapter).result()
        prompts = [_prompt(tokenizer, rng) for _ in range(GROUPS)]
        params = SamplingParams(TOKENS, seed=seed * 1000 + step)
        futures = [engine.sample(policy, SampleRequest(prompt, params, GROUP)) for prompt in prompts]
        data, sampled, rewards = [], [], []
        for prompt, future in zip(prompts, futures, strict=True):
            group = future.result().sequences
            scores = np.array([float(digits[sequence.tokens].mean()) for sequence in group])
            rewards += scores.tolist()
            for sequence, advantage in zip(group, scores - scores.mean(), strict=True):
                data.append(_datum(prompt, sequence, float(advantage)))
                sampled.append(sequence.logprobs)
        output = engine.forward_backward(adapter, data, Loss("importance_sampling")).result()
        trained = [scores[-len(own) :] for scores, own in zip(output.logprobs, sampled, strict=True)]
        engine.optim_step(adapter, AdamParams(learning_rate=RATE)).result()
        engine.drop_policy(policy)
        ours, theirs = np.concatenate(trained), np.concatenate(sampled)
        gap = np.abs(ours - theirs)
        lines.append(
            {
                "mean": float(gap.mean()),
                "median": float(np.median(gap)),
                "p99": float(np.quantile(gap, 0.99)),
                "max": float(gap.max()),
                "equal": float((ours.view(np.int32) == theirs.view(np.int32)).mean()),
                "tokens": len(gap),
                "reward": float(np.mean(rewards)),
                "seconds": time.perf_counter() - began_s,
            }
        )
    engine.drop_adapter(adapter)
    return lines


def _datum(prompt: Ints, sequence: SampledSequence, advantage: float) -> Datum:
    tokens = np.concatenate([prompt, sequence.tokens])
    unscored = np.zeros(len(prompt) - 1, np.float32)
    return Datum(
        tokens[:-1],
        {
            "target_tokens": tokens[1:],
            "logprobs": np.concatenate([unscored, sequence.logprobs]).astype(np.float32),
            "advantages": np.concatenate(
                [unscored, np.full(len(sequence.tokens), advantage, np.float32)]
            ).astype(np.float32),
        },
    )


def _prompt(tokenizer: Any, rng: np.random.Generator) -> Ints:
    left, right = rng.integers(10, 1000, 2)
    messages = [{"role": "user", "content": f"What is {left} times {right}? Think step by step."}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return np.array(tokenizer.encode(text, add_special_tokens=False), dtype=np.int64)


def _tokenizer(engine: Engine) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(engine.tokenizer_dir)


def _summary(mode: dict[str, Any]) -> dict[str, Any]:
    lines = [line for run in mode["seeds"].values() for line in run]
    means = [float(np.mean([line["mean"] for line in run])) for run in mode["seeds"].values()]
    return {
        "mean gap by seed": [round(mean, 6) for mean in means],
        "worst step": max(line["mean"] for line in lines),
        "max": max(line["max"] for line in lines),
        "equal": min(line["equal"] for line in lines),
        "reward, last step": [round(run[-1]["reward"], 3) for run in mode["seeds"].values()],
        "seconds a step": round(float(np.median([line["seconds"] for line in lines])), 3),
        "speed": {name: round(value, 1) for name, value in mode.get("speed", {}).items()},
        "gpu ms": mode.get("gpu ms", {}),
    }


def _commit() -> str:
    result = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return result.stdout.strip() or "unknown"


if __name__ == "__main__":
    main()
