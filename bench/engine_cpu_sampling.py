"""How fast the engine samples on a CPU, against transformers' `generate` in the same run.

    python bench/engine_cpu_sampling.py MODEL_FOLDER [--dtype bfloat16] [--repeat 3] [--threads 2] [--json]

The same prompts, the same number of new tokens, no stops, temperature 1, logprobs included in ours. Each side
runs in a process of its own, one after the other, as in bench/engine_cpu.py. Prefill is prompts of 128 tokens
and one new one; decode is the time of a whole run less that of one with a single new token. The best of the
repetitions is reported.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np

from hermes.engine.info import EngineOptions
from hermes.engine.types import LoraConfig, SampleRequest, SamplingParams
from hermes.models.local.torch_threads import import_torch

PROMPT_TOKENS = 128
GROUPS, GROUP = 8, 8

Prompts = np.ndarray[Any, np.dtype[np.int64]]


class Side(Protocol):
    def run(self, prompts: Prompts, new: int, samples: int = 1) -> None:
        """Samples `new` tokens to each prompt."""

    def adapt(self) -> None:
        """From here on with a LoRA adapter."""

    def close(self) -> None: ...


class Ours:
    def __init__(self, folder: str, dtype: str, threads: int) -> None:
        import_torch()
        import torch

        from hermes.engine.engine import Engine

        torch.set_num_threads(threads)
        self._engine = Engine(EngineOptions(folder, device="cpu", dtype=dtype, kv_bytes=2 << 30))
        self._engine.start()
        self._policy: str | None = None

    def run(self, prompts: Prompts, new: int, samples: int = 1) -> None:
        params = SamplingParams(max_tokens=new, stop=())
        asked = [self._engine.sample(self._policy, SampleRequest(one, params, samples)) for one in prompts]
        for future in asked:
            future.result()

    def adapt(self) -> None:
        adapter = self._engine.create_adapter(LoraConfig(rank=32)).result()
        self._policy = self._engine.snapshot(adapter).result()

    def close(self) -> None:
        self._engine.close()


class Theirs:
    def __init__(self, folder: str, dtype: str, threads: int) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        torch.set_num_threads(threads)
        model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, dtype))
        self._model: Any = model.eval()

    def run(self, prompts: Prompts, new: int, samples: int = 1) -> None:
        import torch
        from engine_baseline import continue_prompts

        continue_prompts(self._model, torch.from_numpy(np.repeat(prompts, samples, axis=0)), new)

    def adapt(self) -> None:
        import peft

        self._model = peft.get_peft_model(
            self._model, peft.LoraConfig(r=32, lora_alpha=32, target_modules="all-linear")
        ).eval()

    def close(self) -> None:
        """Nothing runs on."""


SIDES: dict[str, type[Ours | Theirs]] = {"engine": Ours, "generate": Theirs}


def rates(side: Side, batches: list[int], new: int, repeat: int) -> Iterator[tuple[str, float]]:
    """What was measured, and tokens per second of it."""
    rng = np.random.default_rng(0)

    def prompts(count: int) -> Prompts:
        return rng.integers(100, 40_000, (count, PROMPT_TOKENS))  # new ones each time: nothing can be reused

    def decode(count: int) -> float:
        long = best(lambda: side.run(prompts(count), new), repeat)
        return count * (new - 1) / (long - best(lambda: side.run(prompts(count), 1), repeat))

    yield f"prefill 16 x {PROMPT_TOKENS}", 16 * PROMPT_TOKENS / best(lambda: side.run(prompts(16), 1), repeat)
    for count in batches:
        yield f"decode {count} x {new}", decode(count)
    whole = f"{GROUPS} groups of {GROUP} x ({PROMPT_TOKENS} + {new})"
    yield whole, GROUPS * GROUP * new / best(lambda: side.run(prompts(GROUPS), new, GROUP), repeat)
    side.adapt()
    yield f"decode {batches[-1]} x {new} with an adapter", decode(batches[-1])


def best(work: Callable[[], None], repeat: int) -> float:
    """Seconds; once more to warm up."""
    times = []
    for _ in range(repeat + 1):
        began = time.perf_counter()
        work()
        times.append(time.perf_counter() - began)
    return min(times[1:])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="folder of the base model")
    parser.add_argument("--dtype", default="bfloat16")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--new", type=int, default=64, help="tokens to sample per sequence")
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 16, 64])
    parser.add_argument("--only", choices=tuple(SIDES), help="one side, in this process")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.only:
        print(json.dumps(measured(options)))
        return
    found = {name: _in_a_process(name) for name in SIDES}
    for what, ours in found["engine"].items():
        theirs = found["generate"][what]
        row = {"what": what, "engine": ours, "generate": theirs, "times": round(ours / theirs, 2)}
        print(
            json.dumps(row) if options.json else f"{what:<32} {ours:>9.1f} {theirs:>9.1f} {row['times']:>6}x"
        )


def measured(options: argparse.Namespace) -> dict[str, float]:
    side = SIDES[options.only](options.model, options.dtype, options.threads)
    try:
        found = {}
        for what, rate in rates(side, options.batches, options.new, options.repeat):
            found[what] = round(rate, 1)
            print(f"{options.only}: {what}: {rate:.1f} tokens/s", file=sys.stderr, flush=True)
        return found
    finally:
        side.close()


def _in_a_process(name: str) -> dict[str, float]:
    command = [sys.executable, __file__, *sys.argv[1:], "--only", name]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    answer: dict[str, float] = json.loads(done.stdout)
    return answer


if __name__ == "__main__":
    main()
