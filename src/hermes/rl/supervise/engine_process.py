"""An engine on this machine for as long as a block of code needs one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from hermes.errors import HermesError
from hermes.rl.supervise.process import HERMES, ProcessHandle, ProcessSpec, fetch_json, last_error

_POLL_S = 0.05
_NO_VARIABLES: Mapping[str, str] = MappingProxyType({})


@contextmanager
def engine_process(
    model: str,
    device: str,
    port: int,
    log: Path,
    state_dir: Path,
    environ: Mapping[str, str] = _NO_VARIABLES,
    *,
    dtype: str | None = None,
    memory_gib: float | None = None,
    kv_gib: float | None = None,
    max_adapters: int | None = None,
) -> Iterator[str]:
    """Yields its address once it has loaded the model. It is killed at the end: it writes checkpoints
    atomically, so none is left incomplete."""
    url = f"http://127.0.0.1:{port}"
    command = (
        *(*HERMES, "engine", "serve", "--model", model, "--device", device),
        *engine_flags(dtype, memory_gib, kv_gib),
        *(() if max_adapters is None else ("--max-adapters", str(max_adapters))),
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


def engine_flags(dtype: str | None, memory_gib: float | None, kv_gib: float | None) -> tuple[str, ...]:
    """Of `hermes engine serve`; what is None is left to the engine."""
    options = {"--dtype": dtype, "--memory-gib": memory_gib, "--kv-gib": kv_gib}
    return tuple(word for name, value in options.items() if value for word in (name, str(value)))
