"""One GRPO training step on the CPU: the engine against padded transformers + PEFT, in the same run.

    python bench/engine_cpu.py MODEL_FOLDER [--groups 4] [--repeat 3] [--threads 2]

A step is forward, backward and AdamW over groups of 8 completions of 40 to 64 tokens that share a prompt of
about 200, LoRA rank 32 on all linear layers and the output projection. Rollout tokens count every completion
with its own copy of the prompt. The best of the repetitions is reported, in wall time and in CPU time of the
process; on a busy machine the latter is the one to compare, with --threads 1.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from hermes.engine.adapter import Adapter, optim_step
from hermes.engine.backbone import load_backbone
from hermes.engine.training import forward_backward
from hermes.engine.types import AdamParams, Datum, LoraConfig, Loss

GROUP = 8
PROMPT = (180, 221)
COMPLETION = (40, 65)
BUDGET_TOKENS = 4096


def make_data(groups: int, vocab: int) -> list[Datum]:
    rng = np.random.default_rng(0)
    data = []
    for _ in range(groups):
        prompt = rng.integers(0, vocab, rng.integers(*PROMPT))
        for _ in range(GROUP):
            tokens = np.concatenate([prompt, rng.integers(0, vocab, rng.integers(*COMPLETION))])
            advantages = np.full(len(tokens) - 1, rng.normal(), dtype=np.float32)
            advantages[: len(prompt) - 1] = 0.0
            logprobs = np.where(advantages == 0, 0.0, -10.0).astype(np.float32)
            inputs = {"target_tokens": tokens[1:], "logprobs": logprobs, "advantages": advantages}
            data.append(Datum(tokens[:-1], inputs))
    return data


def engine_step(folder: str, dtype: torch.dtype, data: Sequence[Datum]) -> Callable[[], None]:
    backbone = load_backbone(folder, "cpu", dtype)
    adapter = Adapter(backbone.spec, LoraConfig(rank=32, seed=0), torch.device("cpu"))

    def step() -> None:
        loss = Loss("importance_sampling")
        for _ in forward_backward(backbone, adapter, data, loss, budget_tokens=BUDGET_TOKENS):
            pass
        optim_step(adapter, AdamParams(learning_rate=1e-5))

    return step


def padded_step(folder: str, dtype: torch.dtype, data: Sequence[Datum]) -> Callable[[], None]:
    import peft
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)
    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
    twin = peft.get_peft_model(model, peft.LoraConfig(r=32, lora_alpha=32, target_modules=targets))
    optimizer = torch.optim.AdamW([one for one in twin.parameters() if one.requires_grad], lr=1e-5)

    def step() -> None:
        for start in range(0, len(data), GROUP):
            _padded_loss(twin, data[start : start + GROUP]).backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _padded_loss(twin: Any, data: Sequence[Datum]) -> torch.Tensor:
    columns = {
        "tokens": [torch.as_tensor(datum.tokens) for datum in data],
        **{name: [torch.as_tensor(datum.inputs[name]) for datum in data] for name in data[0].inputs},
    }
    padded = {
        name: torch.nn.utils.rnn.pad_sequence(values, batch_first=True) for name, values in columns.items()
    }
    lengths = torch.tensor([len(datum.tokens) for datum in data])
    mask = torch.arange(padded["tokens"].shape[1]) < lengths[:, None]
    logits = twin(input_ids=padded["tokens"], attention_mask=mask.long()).logits.float()
    logprobs = logits.log_softmax(-1).gather(2, padded["target_tokens"][..., None])[..., 0]
    return (-(logprobs - padded["logprobs"]).exp() * padded["advantages"] * mask).sum()


def best(step: Callable[[], None], repeat: int) -> tuple[float, float]:
    """Wall and CPU seconds."""
    step()
    walls, cpus = [], []
    for _ in range(repeat):
        wall, cpu = time.perf_counter(), time.process_time()
        step()
        walls.append(time.perf_counter() - wall)
        cpus.append(time.process_time() - cpu)
    return min(walls), min(cpus)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of the base model")
    parser.add_argument("--groups", type=int, default=4)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=("engine", "padded"), help="leave the other side out")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    data = make_data(options.groups, 49152)
    tokens = sum(len(datum.tokens) for datum in data)
    sides = {"padded": padded_step, "engine": engine_step}
    for dtype in (torch.float32, torch.bfloat16):
        for name, side in sides.items():
            if options.only in (None, name):
                wall_s, cpu_s = best(side(options.model, dtype, data), options.repeat)
                row = {
                    "side": name,
                    "dtype": str(dtype)[6:],
                    "wall_s": round(wall_s, 3),
                    "cpu_s": round(cpu_s, 3),
                }
                print(json.dumps({**row, "rollout_tokens_per_s": round(tokens / wall_s)}), flush=True)


if __name__ == "__main__":
    main()
