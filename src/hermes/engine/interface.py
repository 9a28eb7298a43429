"""The interface that the servers need of an engine: one in this process (`Engine`) or several behind a front.

The methods are described in `engine.engine.Engine`. Nothing here imports torch.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Protocol

from hermes.engine.info import AdapterInfo, EngineStats, PolicyInfo
from hermes.engine.spec import ModelSpec
from hermes.engine.types import (
    AdamParams,
    Datum,
    LoraConfig,
    Loss,
    SampleRequest,
    SampleResult,
    TrainOutput,
)


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
