"""The command line of an engine on this machine, and an engine for as long as a block of code needs one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from urllib.parse import urlsplit

from hermes.config.load import Config
from hermes.config.paths import logs_dir
from hermes.errors import HermesError
from hermes.rl.config.fields import TrainerFields
from hermes.rl.process import HERMES, ProcessHandle, ProcessSpec, last_error
from hermes.serving.fetch import fetch_json
from hermes.training.options import RlOptions
from hermes.training.service.client import is_ready
from hermes.training.session import ProgressCallback, TrainingRunSpec

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
    def from_fields(cls, fields: TrainerFields) -> EngineProcessOptions:
        """`fields`: the section `tinker` of a run's configuration."""
        return cls(
            dtype=None if fields.engine_dtype == "auto" else fields.engine_dtype,
            memory_gib=fields.engine_memory_gib,
            kv_gib=fields.engine_kv_gib,
            quantize=None if fields.engine_quantize == "none" else fields.engine_quantize,
            replicas=fields.engine_replicas,
            tensor_parallel_size=fields.engine_tensor_parallel_size,
            exact=fields.engine_exact,
        )

    def command(self, model: str, device: str, port: int, state_dir: Path) -> tuple[str, ...]:
        """`hermes engine serve …`"""
        return (
            *(*HERMES, "engine", "serve", "--model", model, "--device", device),
            *self.flags(),
            *("--port", str(port), "--state-dir", str(state_dir)),
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


def api_arguments(port: int, folder: Path) -> tuple[str, ...]:
    """`hermes api …` for a run, whose books are in its folder."""
    return ("api", "--port", str(port), "--state-dir", str(folder / "api"))


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
    command = options.command(model, device, port, state_dir)
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


@contextmanager
def run_engine(
    config: Config, run: TrainingRunSpec, options: RlOptions, progress: ProgressCallback
) -> Iterator[None]:
    """With --with-engine: an engine at the run's address, unless one is running there or a service trains."""
    url = run.connection.url
    if not options.with_engine or not run.connection.local or is_ready(url):
        yield
        return
    log = logs_dir(config.home) / "rl_training" / f"engine_{run.id}.log"
    progress(f"starting an engine for {run.lora.base_model} at {url}; its log is {log}")
    with engine_process(
        run.lora.base_model,
        config.settings.rl.device,
        urlsplit(url).port or 80,
        log,
        config.home / "engine",
        options=EngineProcessOptions(
            dtype=options.engine_dtype, memory_gib=options.engine_memory_gib, kv_gib=options.engine_kv_gib
        ),
    ):
        yield
