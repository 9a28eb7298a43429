"""What the benchmark measures, on both sides: the workload's sizes, timing and memory, and training data."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from hermes.engine.memory import peak_bytes, reset_peak
from hermes.engine.types import Datum, Ints

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
