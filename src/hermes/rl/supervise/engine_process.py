"""The command line of an engine on this machine, and an engine for as long as a block of code needs one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from hermes.config.environment import without_stored
from hermes.config.load import Config
from hermes.config.paths import logs_dir
from hermes.engine.server.options import EngineServeOptions
from hermes.errors import ConfigError, HermesError
from hermes.rl.config.fields import TrainerFields
from hermes.rl.machine import missing_gpu
from hermes.rl.process import ProcessId, last_error, signal_group
from hermes.serving.fetch import fetch_json
from hermes.training.options import RlFields, RlOptions
from hermes.training.service.client import is_ready
from hermes.training.session import ProgressCallback, TrainingRunSpec

_POLL_S = 0.05
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


def engine_options(fields: TrainerFields, **overrides: Any) -> EngineServeOptions:
    """`fields`: the section `tinker` of a run's configuration; `overrides` take precedence."""
    values = {
        "dtype": fields.engine_dtype,
        "memory_gib": fields.engine_memory_gib,
        "kv_gib": fields.engine_kv_gib,
        "quantize": None if fields.engine_quantize == "none" else fields.engine_quantize,
        "replicas": str(fields.engine_replicas),
        "tensor_parallel_size": fields.engine_tensor_parallel_size,
        "exact": fields.engine_exact,
    }
    return EngineServeOptions.model_validate({**values, **overrides})


def api_arguments(port: int, folder: Path) -> tuple[str, ...]:
    """`hermes api …` for a run, whose books are in its folder."""
    return ("api", "--port", str(port), "--state-dir", str(folder / "api"))


@contextmanager
def engine_process(
    options: EngineServeOptions, log: Path, environ: Mapping[str, str] = _NO_VARIABLES
) -> Iterator[str]:
    """Yields its address once it has loaded the model. It is killed at the end, and ends with this process if
    that is killed: it writes checkpoints atomically, so none is left incomplete."""
    url = f"http://127.0.0.1:{options.port}"
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("ab") as file,
        subprocess.Popen(
            [sys.executable, "-P", "-m", "hermes.rl.supervise.lifeline", *options.arguments()],
            env={**without_stored(os.environ), **environ},
            stdin=subprocess.PIPE,  # the lifeline
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        ) as engine,
    ):
        try:
            while fetch_json(f"{url}/health") is None:
                if engine.poll() is not None:
                    problem = last_error(log, f"it ended with exit code {engine.returncode}")
                    raise HermesError(f"the engine does not start: {problem}", f"see {log}")
                time.sleep(_POLL_S)
            yield url
        finally:
            signal_group(ProcessId.of(engine.pid), signal.SIGKILL)


@contextmanager
def run_engine(
    config: Config, run: TrainingRunSpec, options: RlOptions, progress: ProgressCallback
) -> Iterator[None]:
    """With --with-engine: an engine at the run's address, unless one is running there or a service trains.

    ConfigError before anything is downloaded if the model needs a GPU that this machine has not.
    """
    url = run.connection.url
    if not options.with_engine or not run.connection.local or is_ready(url):
        yield
        return
    if (missing := missing_gpu(config.settings.rl, config.environ, run.lora.base_model)) is not None:
        raise ConfigError(missing.problem, missing.fix)
    log = logs_dir(config.home) / "rl_training" / f"engine_{run.id}.log"
    progress(f"starting an engine for {run.lora.base_model} at {url}; its log is {log}")
    engine = engine_options(
        TrainerFields.model_validate(options.model_dump(include=set(RlFields.model_fields))),
        model=run.lora.base_model,
        device=config.settings.rl.device,
        port=urlsplit(url).port or 80,
        state_dir=config.home / "engine",
    )
    with engine_process(engine, log):
        yield
