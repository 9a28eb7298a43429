"""What the engine is measured against: `model.generate`, and a padded training step with PEFT."""

from __future__ import annotations

import gc
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from hermes.engine.types import Datum

if TYPE_CHECKING:
    from hermes.engine.bench import Figure, Workload


def baseline_figures(
    model_name: str, device: torch.device, load: Workload, data: Sequence[Datum]
) -> list[Figure]:
    from transformers import AutoModelForCausalLM

    from hermes.engine.bench import measure

    gc.collect()
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    loaded: Any = AutoModelForCausalLM.from_pretrained(model_name, dtype=dtype)
    model = loaded.to(device).eval()
    figures = []
    for what, batch in (("generate", load.batch), ("generate at batch 1", 1)):
        prompts = torch.randint(3, model.config.vocab_size, (batch, load.prompt), device=device)

        def generate(prompts: Tensor = prompts) -> None:
            with torch.inference_mode():
                model.generate(
                    prompts,
                    attention_mask=torch.ones_like(prompts),
                    min_new_tokens=load.new,
                    max_new_tokens=load.new,
                    do_sample=True,
                    top_k=0,
                    pad_token_id=0,
                )

        figures.append(measure(what, batch * load.new, generate, load.repeat))
    step = _padded_step(model, data, load.train_micro_batch, device)
    tokens = sum(len(datum.tokens) for datum in data)
    return [*figures, measure("train, padded", tokens, step, load.repeat)]


def _padded_step(model: Any, data: Sequence[Datum], micro_batch: int, device: torch.device) -> Any:
    import peft

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    twin = peft.get_peft_model(model.train(), peft.LoraConfig(r=32, lora_alpha=32, target_modules=targets))
    optimizer = torch.optim.AdamW([one for one in twin.parameters() if one.requires_grad], lr=1e-5)

    def step() -> None:
        for start in range(0, len(data), micro_batch):
            loss: Any = _loss(twin, data[start : start + micro_batch], device)
            loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


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
