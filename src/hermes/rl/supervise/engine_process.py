"""An engine on this machine for as long as a block of code needs one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hermes.errors import HermesError
from hermes.rl.supervise.process import HERMES, ProcessHandle, ProcessSpec, fetch_json, last_error

_POLL_S = 0.05
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineProcessOptions:
    """Options of `hermes engine serve`; what is None is left to the engine."""

    dtype: str | None = None
    memory_gib: float | None = None
    kv_gib: float | None = None
    quantize: str | None = None
    replicas: int | None = None
    tensor_parallel_size: int | None = None
    max_adapters: int | None = None
    exact: bool = False

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> EngineProcessOptions:
        """`fields`: the section `tinker` of a run's configuration."""
        return cls(
            dtype=fields.get("engine_dtype"),
            memory_gib=fields.get("engine_memory_gib"),
            kv_gib=fields.get("engine_kv_gib"),
            quantize=None if fields.get("engine_quantize") == "none" else fields.get("engine_quantize"),
            replicas=fields.get("engine_replicas"),
            tensor_parallel_size=fields.get("engine_tensor_parallel_size"),
            exact=bool(fields.get("engine_exact")),
        )

    def flags(self) -> tuple[str, ...]:
        options = {
            "--dtype": self.dtype,
            "--memory-gib": self.memory_gib,
            "--kv-gib": self.kv_gib,
            "--quantize": self.quantize,
            "--replicas": None if self.replicas == 1 else self.replicas,
            "--tensor-parallel-size": None if self.tensor_parallel_size == 1 else self.tensor_parallel_size,
            "--max-adapters": self.max_adapters,
        }
        words = tuple(word for name, value in options.items() if value for word in (name, str(value)))
        return (*words, "--exact") if self.exact else words


_DEFAULTS = EngineProcessOptions()


@contextmanager
def engine_process(
    model: str,
    device: str,
    port: int,
    log: Path,
    state_dir: Path,
    environ: Mapping[str, str] = _NO_VARIABLES,
    options: EngineProcessOptions = _DEFAULTS,
) -> Iterator[str]:
    """Yields its address once it has loaded the model. It is killed at the end: it writes checkpoints
    atomically, so none is left incomplete."""
    url = f"http://127.0.0.1:{port}"
    command = (
        *(*HERMES, "engine", "serve", "--model", model, "--device", device),
        *options.flags(),
        *("--port", str(port), "--state-dir", str(state_dir)),
    )
    engine = ProcessHandle.launch(ProcessSpec("engine", command, log, environ=environ), Path.cwd())
    try:
        while fetch_json(f"{url}/health") is None:
            if (exited := engine.poll()) is not None:
                problem = last_error(log, f"it ended with exit code {exited.code}")
                raise HermesError(f"the engine does not start: {problem}", f"see {log}")
            time.sleep(_POLL_S)
        yield url
    finally:
        engine.stop(grace_s=0)
