"""What the engine is measured against: `model.generate`, a padded training step with PEFT, and both."""

from __future__ import annotations

import gc
import importlib.util
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from hermes.engine.types import Datum

if TYPE_CHECKING:
    from hermes.engine.bench.run import Figure, Workload


Step = Callable[[Sequence[Datum]], None]


def needs_peft() -> str:
    """What has to be left out, and why; nothing where PEFT is installed."""
    if importlib.util.find_spec("peft") is not None:
        return ""
    return "Padded training and the GRPO step of transformers: they need the package peft."


def baseline_figures(
    model_name: str, device: torch.device, dtype: torch.dtype, load: Workload, data: Sequence[Datum]
) -> list[Figure]:
    from transformers import AutoModelForCausalLM

    from hermes.engine.bench.run import GRPO_STEP, BenchMeter

    gc.collect()
    loaded: Any = AutoModelForCausalLM.from_pretrained(model_name, dtype=dtype)
    model = loaded.to(device).eval()
    measure = BenchMeter(device, load.repeat).measure
    figures = []
    for what, batch in (("generate", load.batch), ("generate at batch 1", 1)):
        prompts = torch.randint(3, model.config.vocab_size, (batch, load.prompt), device=device)

        def generate(prompts: Tensor = prompts) -> None:
            continued(model, prompts, load.new)

        figures.append(measure(what, batch * load.new, generate))
    if needs_peft():
        return figures
    twin, step = _padded(model, load.train_micro_batch, device)
    tokens = sum(len(datum.tokens) for datum in data)
    figures.append(measure("train, padded", tokens, lambda: step(data)))
    return [*figures, measure(GRPO_STEP, load.rollouts, lambda: _grpo_step(twin, step, load, device))]


def continued(model: Any, prompts: Tensor, new: int) -> Tensor:
    """The prompts [rows, tokens], each with exactly `new` more."""
    with torch.inference_mode():
        found: Tensor = model.generate(
            input_ids=prompts,
            attention_mask=torch.ones_like(prompts),
            min_new_tokens=new,
            max_new_tokens=new,
            do_sample=True,
            top_k=0,
            pad_token_id=0,
        )
    return found


def _grpo_step(twin: Any, step: Step, load: Workload, device: torch.device) -> None:
    """What `bench.grpo_step` does, by hand."""
    from hermes.engine.bench.run import datum_of

    vocab, rng = twin.config.vocab_size, np.random.default_rng(0)
    prompts = torch.randint(3, vocab, (load.groups, load.shared), device=device)
    first = continued(twin.eval(), prompts.repeat_interleave(load.group, 0), load.turn)
    answers = torch.randint(3, vocab, (load.rollouts, load.answer), device=device)
    second = continued(twin, torch.cat([first, answers], dim=1), load.turn)
    step([datum_of(tokens, load.shared, rng) for tokens in second.cpu().numpy()])


def _padded(model: Any, micro_batch: int, device: torch.device) -> tuple[Any, Step]:
    """The model with an adapter, and what trains that."""
    import peft

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    twin = peft.get_peft_model(model, peft.LoraConfig(r=32, lora_alpha=32, target_modules=targets))
    optimizer = torch.optim.AdamW([one for one in twin.parameters() if one.requires_grad], lr=1e-5)

    def step(data: Sequence[Datum]) -> None:
        twin.train()
        for start in range(0, len(data), micro_batch):
            loss: Any = _loss(twin, data[start : start + micro_batch], device)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return twin, step


def _loss(twin: Any, data: Sequence[Datum], device: torch.device) -> Tensor:
    longest = max(len(datum.tokens) for datum in data)
    rows = {"tokens": 0, "target_tokens": 0, "logprobs": 0.0, "advantages": 0.0}
    columns = {name: torch.full((len(data), longest), fill) for name, fill in rows.items()}
    mask = torch.zeros(len(data), longest, dtype=torch.long)
    for row, datum in enumerate(data):
        values = {"tokens": datum.tokens, **datum.inputs}
        for name, column in columns.items():
            column[row, : len(datum.tokens)] = torch.as_tensor(values[name]).to(column.dtype)
        mask[row, : len(datum.tokens)] = 1
    columns = {name: column.to(device) for name, column in columns.items()}
    logits = twin(input_ids=columns["tokens"], attention_mask=mask.to(device)).logits
    chosen = logits.float().log_softmax(-1).gather(2, columns["target_tokens"][..., None])[..., 0]
    loss: Tensor = -((chosen - columns["logprobs"]).exp() * columns["advantages"]).sum()
    return loss
