"""Learning-rate schedules, and default learning rates of a LoRA by the size of the model. Pure.

The defaults match rates that are known to work: 4e-5 for RL on 8 billion parameters, about 2e-4 on 135
million; for SFT 3e-4 and 1.3e-3. In between they follow a power of the size.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hermes.core import parse_object

_SIZE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)\s?([mMbB])(?![a-zA-Z])")
_EIGHT_BILLION = 8e9
_BUNDLED = ("hermes/smollm2", 135e6)


class ScheduleShape(StrEnum):
    CONSTANT = "constant"
    LINEAR = "linear"
    COSINE = "cosine"


@dataclass(frozen=True, slots=True)
class Schedule:
    rate: float
    """The highest."""
    shape: ScheduleShape = ScheduleShape.CONSTANT
    warmup_steps: int = 0
    total_steps: int = 0
    """Where a falling shape reaches 0."""

    def at(self, step: int) -> float:
        """For the update that makes step `step`, counted from 1; never 0 before the end."""
        if step <= self.warmup_steps:
            return self.rate * step / self.warmup_steps
        if self.shape is ScheduleShape.CONSTANT or self.total_steps <= self.warmup_steps:
            return self.rate
        done = (step - 1 - self.warmup_steps) / (self.total_steps - self.warmup_steps)
        left = max(0.0, 1.0 - done)
        return self.rate * (
            left if self.shape is ScheduleShape.LINEAR else 0.5 * (1 - math.cos(math.pi * left))
        )


def default_rl_rate(parameters: float | None) -> float:
    return _round(4e-5 * _size_ratio(parameters) ** 0.4)


def default_sft_rate(parameters: float | None) -> float:
    return _round(3e-4 * _size_ratio(parameters) ** 0.36)


def default_preference_rate(parameters: float | None) -> float:
    """For DPO and KTO: 1e-5 on 8 billion parameters, 2e-4 on 135 million."""
    return _round(1e-5 * _size_ratio(parameters) ** 0.73)


def parameters_of(model: str) -> float | None:
    """The number of parameters, from the config in the model's folder or from its name; None: unknown."""
    if model == _BUNDLED[0]:
        return _BUNDLED[1]
    config = Path(model) / "config.json"
    if config.is_file():
        return _from_config(config)
    match = _SIZE.search(Path(model).name)
    return float(match[1]) * (1e6 if match[2] in "mM" else 1e9) if match else None


def _from_config(path: Path) -> float | None:
    try:
        shape = parse_object(path.read_text("utf-8"))
        hidden, layers, vocabulary = (
            int(shape[name]) for name in ("hidden_size", "num_hidden_layers", "vocab_size")
        )
    except (OSError, ValueError, KeyError, TypeError):
        return None
    inner = int(shape.get("intermediate_size") or 4 * hidden)
    return float(layers * (4 * hidden * hidden + 3 * hidden * inner) + vocabulary * hidden)


def _size_ratio(parameters: float | None) -> float:
    """How many times smaller than 8 billion, which is also assumed for a model of unknown size."""
    return _EIGHT_BILLION / min(max(parameters or _EIGHT_BILLION, 1e6), 1e12)


def _round(rate: float) -> float:
    return float(f"{rate:.1e}")
