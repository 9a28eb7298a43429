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

import gc
import importlib.util
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

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


TrainStep = Callable[[Sequence[Datum]], None]


def missing_for_baseline() -> str:
    """The measurements that are skipped, with the reason; empty if PEFT is installed."""
    if importlib.util.find_spec("peft") is not None:
        return ""
    return "Padded training and the GRPO step of transformers: they need the package peft."


def baseline_figures(
    model_name: str, device: torch.device, dtype: torch.dtype, load: Workload, data: Sequence[Datum]
) -> list[Figure]:
    from transformers import AutoModelForCausalLM

    gc.collect()
    loaded: Any = AutoModelForCausalLM.from_pretrained(model_name, dtype=dtype)
    model = loaded.to(device).eval()
    measure = BenchMeter(device, load.repeat).measure
    figures = []
    for name, batch in (("generate", load.batch), ("generate at batch 1", 1)):
        prompts = torch.randint(3, model.config.vocab_size, (batch, load.prompt), device=device)

        def generate(prompts: Tensor = prompts) -> None:
            continue_prompts(model, prompts, load.new)

        figures.append(measure(name, batch * load.new, generate))
    if missing_for_baseline():
        return figures
    peft_model, step = _padded_training(model, load.train_micro_batch, device)
    tokens = sum(len(datum.tokens) for datum in data)
    figures.append(measure("train, padded", tokens, lambda: step(data)))
    return [*figures, measure(GRPO_STEP, load.rollouts, lambda: _grpo_step(peft_model, step, load, device))]


def continue_prompts(model: Any, prompts: Tensor, new: int) -> Tensor:
    """The prompts [rows, tokens], each with exactly `new` sampled tokens appended."""
    with torch.inference_mode():
        sequences: Tensor = model.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            min_new_tokens=new,
            max_new_tokens=new,
            do_sample=True,
            top_k=0,
            pad_token_id=0,
        )
    return sequences


def _grpo_step(model: Any, step: TrainStep, load: Workload, device: torch.device) -> None:
    """The same work as `run.grpo_step`."""
    vocab, rng = model.config.vocab_size, np.random.default_rng(0)
    prompts = torch.randint(3, vocab, (load.groups, load.shared), device=device)
    first = continue_prompts(model.eval(), prompts.repeat_interleave(load.group, 0), load.turn_tokens)
    tool_results = torch.randint(3, vocab, (load.rollouts, load.answer), device=device)
    second = continue_prompts(model, torch.cat([first, tool_results], dim=1), load.turn_tokens)
    step([rollout_datum(tokens, load.shared, rng) for tokens in second.cpu().numpy()])


def _padded_training(model: Any, micro_batch: int, device: torch.device) -> tuple[Any, TrainStep]:
    """The model with an adapter, and a function that trains it on padded batches."""
    import peft

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    peft_model = peft.get_peft_model(model, peft.LoraConfig(r=32, lora_alpha=32, target_modules=targets))
    optimizer = torch.optim.AdamW(
        [parameter for parameter in peft_model.parameters() if parameter.requires_grad], lr=1e-5
    )

    def step(data: Sequence[Datum]) -> None:
        peft_model.train()
        for start in range(0, len(data), micro_batch):
            loss: Any = _loss(peft_model, data[start : start + micro_batch], device)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return peft_model, step


def _loss(model: Any, data: Sequence[Datum], device: torch.device) -> Tensor:
    longest = max(len(datum.tokens) for datum in data)
    fills = {"tokens": 0, "target_tokens": 0, "logprobs": 0.0, "advantages": 0.0}
    columns = {name: torch.full((len(data), longest), fill) for name, fill in fills.items()}
    mask = torch.zeros(len(data), longest, dtype=torch.long)
    for row, datum in enumerate(data):
        values = {"tokens": datum.tokens, **datum.inputs}
        for name, column in columns.items():
            column[row, : len(datum.tokens)] = torch.as_tensor(values[name]).to(column.dtype)
        mask[row, : len(datum.tokens)] = 1
    columns = {name: column.to(device) for name, column in columns.items()}
    logits = model(input_ids=columns["tokens"], attention_mask=mask.to(device)).logits
    chosen = logits.float().log_softmax(-1).gather(2, columns["target_tokens"][..., None])[..., 0]
    loss: Tensor = -((chosen - columns["logprobs"]).exp() * columns["advantages"]).sum()
    return loss


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
    train_micro_batch: int = 128
    """Micro-batch size of the padded baseline."""

    @property
    def turn_tokens(self) -> int:
        """Sampled tokens of one of the two turns."""
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
