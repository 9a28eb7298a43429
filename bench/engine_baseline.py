"""The work of `hermes engine bench`, done by transformers' `generate` and a padded PEFT step.

    python bench/engine_baseline.py MODEL_FOLDER [--device cpu]

Prints the report of `hermes engine bench` with a second list, `transformers`, in the engine's dtype. The GRPO
step calls `generate` twice, with its adapter unmerged, and then makes a padded step. Needs the package peft.
"""

from __future__ import annotations

import argparse
import gc
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hermes.engine.bench import (
    CPU_WORKLOAD,
    GRPO_STEP,
    BenchMeter,
    Figure,
    Workload,
    bench,
    rollout_datum,
    training_data,
)
from hermes.engine.engine import Engine
from hermes.engine.info import EngineOptions
from hermes.engine.types import Datum

TrainStep = Callable[[Sequence[Datum]], None]


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
    peft_model, step = _padded_training(model, 128 if device.type == "cuda" else 8, device)
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
    """The same work as `hermes.engine.bench.grpo_step`."""
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--dtype", default="auto")
    arguments = parser.parse_args()
    options = EngineOptions(arguments.model, device=arguments.device, dtype=arguments.dtype)
    report = bench(options)
    engine = Engine(options)
    engine.start()
    device, dtype = engine.device, engine.dtype
    load = Workload() if device.type == "cuda" else CPU_WORKLOAD
    data = training_data(engine, load, shared=True)
    engine.close()
    del engine
    figures = baseline_figures(arguments.model, device, dtype, load, data)
    report["transformers"] = [{**asdict(figure), "per_s": figure.per_s} for figure in figures]
    print(json.dumps(report, indent=2))


if __name__ == "__main__":
    main()
