"""An engine of this machine for as long as a block of code needs one."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import MappingProxyType

from hermes.errors import HermesError
from hermes.rl.checks.inference_test import last_error
from hermes.rl.supervise.part import HERMES, Part, ask, launch
from hermes.rl.supervise.processes import ProcessId, signal_group

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
) -> Iterator[str]:
    """Yields its address once it has loaded the model. Its checkpoints are on disk whole or not at all."""
    url = f"http://127.0.0.1:{port}"
    serve = (*HERMES, "engine", "serve", "--model", model, "--device", device)
    command = (*serve, "--port", str(port), "--state-dir", str(state_dir))
    part = Part("engine", command, log, lambda: ask(f"{url}/health") is not None, environ)
    child = launch(part, Path.cwd())
    try:
        while not part.ready():
            if (code := child.poll()) is not None:
                raise HermesError(f"the engine does not start: {last_error(log, code)}", f"see {log}")
            time.sleep(_POLL_S)
        yield url
    finally:
        signal_group(ProcessId(child.pid, "?"), signal.SIGKILL)
        child.wait()
