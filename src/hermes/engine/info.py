"""What a caller of the engine hands over once, and what it may ask at any time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from hermes.engine.types import LoraConfig
from hermes.errors import HermesError


class EngineClosedError(HermesError):
    """The engine was closed before this work was done. Nothing is wrong with the work."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    model: str
    """Folder with config.json and safetensors, or a hub name."""
    device: str = "auto"
    """auto: cuda where there is one, else cpu."""
    dtype: str = "auto"
    """float32, bfloat16, or auto: bfloat16 where the device multiplies it faster than float32."""
    max_length: int | None = None
    """Longest sequence, prompt and sampled together. None: what the model was made for. Sampling is limited
    by the memory for keys and values as well."""
    max_adapters: int = 32
    max_batch: int | None = None
    """Sequences sampled at once. None: 64 on a CPU, 1024 on a GPU."""
    kv_bytes: int | None = None
    """Memory for keys and values. None: a share of `memory_bytes` on a CPU, half of what is free on a GPU."""
    memory_bytes: int | None = None
    """On a CPU, what the whole process takes at most, as far as the engine decides it. None: 4 GiB, or what
    three copies of the weights and 2.4 GiB take, if that is more."""
    kind: Literal["auto", "compact", "transformers"] = "auto"
    """Which implementation of the base model."""


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    id: str
    config: LoraConfig
    steps: int
    """Optimizer steps taken since it was made or loaded with its optimizer."""
    waiting: int
    """Calls on it that are not done."""


@dataclass(frozen=True, slots=True)
class PolicyInfo:
    id: str
    adapter_id: str | None
    """The adapter it is a snapshot of; None if it was loaded from files."""
    config: LoraConfig


@dataclass(frozen=True, slots=True)
class EngineStats:
    adapters: int
    policies: int
    training_waiting: int
    """Calls on adapters that are not done."""
    sampling_waiting: int
    """Samples that have no memory yet."""
    sampling_running: int
    prompt_tokens: int
    """Asked for, since the start; samples of one request share their prompt."""
    cached_tokens: int
    """Of those, taken from the cache."""
    sampled_tokens: int
    trained_tokens: int
    optimizer_steps: int
    kv_tokens: int
    """How many tokens' keys and values fit."""
    kv_tokens_used: int
    """By running sequences and by finished ones that are kept for reuse."""
    base_bytes: int
    adapter_bytes: int
    policy_bytes: int
    sampling_s: float
    training_s: float
    """Seconds the compute thread spent on each."""
