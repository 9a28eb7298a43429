"""The interface between the OpenAI endpoints and the weights they sample.

It is implemented by the engine of this process (`EngineServerState`) and, in the trainer, over a remote
Tinker service. Neither this module nor the endpoints import torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Protocol

from hermes.engine.checkpoints.store import Checkpoint
from hermes.engine.types import SampleRequest, SampleResult


class ServedModelShape(Protocol):
    @property
    def max_length(self) -> int: ...

    @property
    def eos_ids(self) -> tuple[int, ...]: ...

    @property
    def vocab(self) -> int: ...


class SamplingBackend(Protocol):
    """See `Engine`."""

    @property
    def spec(self) -> ServedModelShape: ...

    @property
    def tokenizer_dir(self) -> str: ...

    def sample(self, policy_id: str | None, request: SampleRequest, /) -> Future[SampleResult]: ...

    def cancel(self, future: Future[SampleResult], /) -> None: ...


class PolicyNameList(Protocol):
    """See `PolicyNames`."""

    @property
    def base_names(self) -> tuple[str, ...]: ...

    def names(self) -> list[str]: ...

    def resolve(self, name: str, /) -> str | None: ...

    def use(self, name: str, /) -> AbstractAsyncContextManager[str | None]: ...


class CheckpointList(Protocol):
    """See `CheckpointStore`."""

    def checkpoints(self) -> Sequence[Checkpoint]: ...


class OpenAIBackend(Protocol):
    """See `EngineServerState`."""

    @property
    def engine(self) -> SamplingBackend: ...

    @property
    def names(self) -> PolicyNameList: ...

    @property
    def store(self) -> CheckpointList: ...
