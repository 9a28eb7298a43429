"""One GRPO step on the CPU: the engine against `generate` and padded training with PEFT, in the same run.

    python bench/engine_cpu.py MODEL_FOLDER [--groups 4] [--repeat 3] [--threads 2]

Each side runs in a process of its own, one after the other: the engine as `hermes engine serve` starts it,
transformers as a script of its user's would. In one process the threads of one would slow the other down.

A step samples groups of 8 answers to prompts of about 200 tokens with the current adapter, and trains on 8
completions of 40 to 64 tokens for each prompt: forward, backward and AdamW, LoRA rank 32 on all linear layers
and the output projection. Rollout tokens count every completion with its own copy of the prompt. The best of
the repetitions is reported, in wall time and in CPU time of the process; on a busy machine the latter is the
one to compare, with --threads 1. `peak_gib` is the most memory that the process had; --memory-gib limits the
engine's.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from hermes.engine.info import EngineOptions
from hermes.engine.types import AdamParams, Datum, Ints, LoraConfig, Loss, SampleRequest, SamplingParams
from hermes.models.local.torch_threads import import_torch

GROUP = 8
PROMPT = (180, 221)
COMPLETION = (40, 65)
NEW = 52
DTYPES = ("float32", "bfloat16")


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


def prompts_of(data: Sequence[Datum]) -> list[Ints]:
    """Of each group once."""
    firsts = data[::GROUP]
    return [datum.tokens[: int(np.flatnonzero(datum.inputs["advantages"])[0]) + 1] for datum in firsts]


class Ours:
    def __init__(
        self, folder: str, dtype: str, threads: int, data: Sequence[Datum], memory_bytes: int | None
    ) -> None:
        import_torch()
        import torch

        from hermes.engine.engine import Engine

        torch.set_num_threads(threads)
        self._engine = Engine(EngineOptions(folder, "cpu", dtype, memory_bytes=memory_bytes))
        self._engine.start()
        self._adapter = self._engine.create_adapter(LoraConfig(rank=32, seed=0)).result()
        self._data, self._prompts = data, prompts_of(data)

    def sample(self) -> None:
        policy = self._engine.snapshot(self._adapter).result()
        params = SamplingParams(max_tokens=NEW, stop=())
        asked = [self._engine.sample(policy, SampleRequest(one, params, GROUP)) for one in self._prompts]
        for future in asked:
            future.result()
        self._engine.drop_policy(policy)

    def train(self) -> None:
        self._engine.forward_backward(self._adapter, self._data, Loss("importance_sampling")).result()
        self._engine.optim_step(self._adapter, AdamParams(learning_rate=1e-5)).result()

    def close(self) -> None:
        self._engine.close()


class Theirs:
    def __init__(
        self, folder: str, dtype: str, threads: int, data: Sequence[Datum], memory_bytes: int | None
    ) -> None:
        import peft
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj", "lm_head"]
        self._twin: Any = peft.get_peft_model(
            model, peft.LoraConfig(r=32, lora_alpha=32, target_modules=targets)
        )
        trained = [one for one in self._twin.parameters() if one.requires_grad]
        self._optimizer = torch.optim.AdamW(trained, lr=1e-5)
        self._data, self._prompts = data, prompts_of(data)

    def sample(self) -> None:
        import torch

        # padded at the left, as generate wants
        rows = [torch.as_tensor(one).flip(0) for one in self._prompts]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=-1).flip(1)
        with torch.inference_mode():
            self._twin.generate(
                input_ids=ids.clamp_min(0),
                attention_mask=(ids >= 0).long(),
                num_return_sequences=GROUP,
                max_new_tokens=NEW,
                min_new_tokens=NEW,
                do_sample=True,
                top_k=0,
                pad_token_id=0,
            )

    def train(self) -> None:
        for start in range(0, len(self._data), GROUP):
            _padded_loss(self._twin, self._data[start : start + GROUP]).backward()
        self._optimizer.step()
        self._optimizer.zero_grad()

    def close(self) -> None:
        """Nothing runs on."""


SIDES: dict[str, type[Ours | Theirs]] = {"padded": Theirs, "engine": Ours}


def _padded_loss(twin: Any, data: Sequence[Datum]) -> Any:
    import torch

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
    parser.add_argument("--memory-gib", type=float, help="limit of the engine; default: its own")
    parser.add_argument("--only", choices=tuple(SIDES), help="leave the other side out")
    parser.add_argument("--dtype", choices=DTYPES, help="leave the other one out")
    options = parser.parse_args()
    if options.only and options.dtype:
        print(json.dumps(row(options)), flush=True)
        return
    for dtype in (options.dtype,) if options.dtype else DTYPES:
        for name in (options.only,) if options.only else SIDES:
            command = [sys.executable, __file__, *sys.argv[1:], "--dtype", dtype, "--only", name]
            subprocess.run(command, check=True)


def row(options: argparse.Namespace) -> dict[str, Any]:
    """What one side takes in one dtype."""
    data = make_data(options.groups, 49152)
    tokens = sum(len(datum.tokens) for datum in data)
    memory_bytes = None if options.memory_gib is None else int(options.memory_gib * 2**30)
    side = SIDES[options.only](options.model, options.dtype, options.threads, data, memory_bytes)
    times = measured(side, options.repeat)
    speed = {"trained_rollout_tokens_per_s": round(tokens / times["train_s"])}
    peak = {"peak_gib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)}
    return {"side": options.only, "dtype": options.dtype, **times, **speed, **peak}


def measured(side: Ours | Theirs, repeat: int) -> dict[str, Any]:
    """Seconds of a step and of its halves."""
    try:
        sample_s, sample_cpu_s = best(side.sample, repeat)
        train_s, train_cpu_s = best(side.train, repeat)
    finally:
        side.close()
    parts = {"sample_s": sample_s, "train_s": train_s, "step_s": sample_s + train_s}
    cpu = {"sample_cpu_s": sample_cpu_s, "train_cpu_s": train_cpu_s, "step_cpu_s": sample_cpu_s + train_cpu_s}
    return {name: round(value, 2) for name, value in (parts | cpu).items()}


if __name__ == "__main__":
    main()
