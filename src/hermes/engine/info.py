"""The options of an engine, what it reports about itself, and the interface that the servers need of it.

An engine is in this process (`Engine`, which describes the methods), or several are behind a front. Nothing
here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from hermes.engine.spec import ModelSpec
from hermes.engine.types import (
    AdamParams,
    Datum,
    EngineCapacityError,
    EngineUserError,
    LoraConfig,
    Loss,
    NotFiniteError,
    SampleRequest,
    SampleResult,
    TrainOutput,
)
from hermes.errors import HermesError, HostError


class EngineClosedError(HermesError):
    """The engine was closed before this work was done. The work itself is valid and can be sent again."""


@dataclass(frozen=True, slots=True)
class EngineOptions:
    model: str
    """Folder with config.json and safetensors, or a hub name."""
    device: str = "auto"
    """auto: cuda where there is one, else cpu."""
    dtype: str = "auto"
    """float32, bfloat16, or auto: bfloat16 where the device multiplies it faster than float32."""
    max_length: int | None = None
    """Longest sequence, prompt and sampled together. None: the model's own limit. Sampling is also limited
    by the memory for keys and values."""
    max_adapters: int = 32
    max_batch: int | None = None
    """Sequences sampled at once. None: 64 on a CPU, 1024 on a GPU."""
    kv_bytes: int | None = None
    """Memory for keys and values. None: a share of `memory_bytes` on a CPU, half of the free memory on a
    GPU."""
    memory_bytes: int | None = None
    """On a CPU, the memory limit of the whole process, as far as the engine controls it. None: 4 GiB, or
    three copies of the weights and 2.4 GiB, if that is more."""
    kind: Literal["auto", "compact", "transformers"] = "auto"
    """Which implementation of the base model."""
    device_share: float = 1.0
    """The share of a GPU's free memory for this engine: replicas on one GPU divide it."""
    tensor_parallel_size: int = 1
    """Processes that have the base model together, each a part of every layer: for a model that does not fit
    one device. More than one: only in a worker behind a front."""
    quantize: str | None = None
    """nf4 or int8: the layers' matrices are stored in 4 or 8 bits; None: in the dtype."""
    exact: bool = False
    """Whether sampler and trainer give the same logprobs bit for bit, by batch-invariant kernels: slower, on
    a GPU in bfloat16 only."""


@dataclass(frozen=True, slots=True)
class AdapterInfo:
    id: str
    config: LoraConfig
    steps: int
    """Optimizer steps since it was created or loaded with its optimizer."""
    waiting: int
    """Unfinished calls on it."""


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
    """Unfinished calls on adapters."""
    sampling_waiting: int
    """Samples that have no slot yet."""
    sampling_running: int
    prompt_tokens: int
    """Received since the start; a prompt counts once for all samples of its request."""
    cached_tokens: int
    """How many of those were read from the prefix cache."""
    sampled_tokens: int
    trained_tokens: int
    optimizer_steps: int
    kv_tokens: int
    """Size of the pool of keys and values."""
    kv_tokens_used: int
    """By running sequences, and by finished ones in the prefix cache."""
    base_bytes: int
    adapter_bytes: int
    policy_bytes: int
    sampling_s: float
    training_s: float
    """Time of the compute thread."""


class ParametersNeededError(HermesError):
    """The worker does not have the adapter any more: the call has to be sent again with its parameters."""


SentError = tuple[str, str, str]

_ERRORS: dict[str, type[HermesError]] = {
    error.__name__: error
    for error in (
        EngineUserError,
        EngineCapacityError,
        EngineClosedError,
        HostError,
        ParametersNeededError,
        HermesError,
    )
}


def encode_error(error: BaseException) -> SentError:
    if isinstance(error, HermesError):
        return type(error).__name__, error.message, error.hint
    return "", f"{type(error).__name__}: {error}", ""


def decode_error(encoded: SentError) -> HermesError:
    name, message, hint = encoded
    if name == NotFiniteError.__name__:
        return NotFiniteError()
    return _ERRORS.get(name, HermesError)(message, hint)


class EngineInterface(Protocol):
    spec: ModelSpec
    tokenizer_dir: str

    def close(self) -> None: ...

    def create_adapter(self, config: LoraConfig) -> Future[str]: ...

    def drop_adapter(self, adapter_id: str) -> None: ...

    def forward_backward(
        self, adapter_id: str, data: Sequence[Datum], loss: Loss, forward_only: bool = False
    ) -> Future[TrainOutput]: ...

    def optim_step(self, adapter_id: str, params: AdamParams) -> Future[dict[str, float]]: ...

    def snapshot(self, adapter_id: str) -> Future[str]: ...

    def save(self, adapter_id: str, folder: Path, optimizer: bool) -> Future[int]: ...

    def load(self, adapter_id: str, folder: Path, optimizer: bool) -> Future[None]: ...

    def export(self, policy_id: str, folder: Path) -> Future[int]: ...

    def load_policy(self, folder: Path) -> Future[str]: ...

    def drop_policy(self, policy_id: str) -> None: ...

    def adapter(self, adapter_id: str) -> AdapterInfo: ...

    def policy(self, policy_id: str) -> PolicyInfo: ...

    def policies(self) -> tuple[PolicyInfo, ...]: ...

    def sample(self, policy_id: str | None, request: SampleRequest) -> Future[SampleResult]: ...

    def cancel(self, future: Future[SampleResult]) -> None: ...

    def stats(self) -> EngineStats: ...
