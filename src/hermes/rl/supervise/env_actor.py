"""The Ray actor that has one environment process on its node. It sends the output to the front, and the end.

The process never outlives the actor: it would go on with the items of the one that takes its place.
"""

from __future__ import annotations

import importlib
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes.cluster.actors import Versions, check_versions
from hermes.config.environment import without_stored

_POLL_S = 0.2
_CHUNK_BYTES = 65_536


@dataclass(frozen=True, slots=True)
class EnvJob:
    """One environment process, for any node."""

    arguments: tuple[str, ...]
    """The arguments of `hermes`."""
    environ: Mapping[str, str] = field(repr=False)
    """On top of the node's own environment."""
    files: Mapping[str, str] = field(repr=False)
    """Argument that is the path of a file on the front → the file's text; the node gets a copy."""
    cwd: str
    """Where it runs, on nodes that have this folder."""


@dataclass(frozen=True, slots=True)
class EnvStarted:
    pid: int
    node: str


class EnvActor:
    """Two of its methods run at once: `serve`, and `terminate` beside it."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def serve(self, job: EnvJob, versions: Versions) -> Iterator[EnvStarted | bytes | int]:
        """Where it runs, then its output as it comes, last its exit code."""
        check_versions(versions)
        ray: Any = importlib.import_module("ray")
        with tempfile.TemporaryDirectory(prefix="hermes-env-") as folder:
            copies = _write_files(job.files, Path(folder))
            process = subprocess.Popen(
                [
                    *(sys.executable, "-P", "-m", "hermes.rl.supervise.lifeline"),
                    *(copies.get(word, word) for word in job.arguments),
                ],
                env={**without_stored(os.environ), **job.environ},
                cwd=job.cwd if Path(job.cwd).is_dir() else None,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            self._process = process
            yield EnvStarted(process.pid, ray.util.get_node_ip_address())
            yield from _output(process)
            _signal_group(process.pid, signal.SIGKILL)  # processes that it may have left behind
            yield process.returncode

    def terminate(self) -> None:
        """The signal that ends an environment in order; a second one ends it at once."""
        if self._process is not None and self._process.poll() is None:
            _signal_group(self._process.pid, signal.SIGTERM)


def _output(process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Until the process has ended, even if another one still has its output open."""
    assert process.stdout is not None
    output = process.stdout.fileno()
    os.set_blocking(output, False)
    while True:
        ended = process.poll() is not None
        readable, _, _ = select.select([output], [], [], 0 if ended else _POLL_S)
        chunk = os.read(output, _CHUNK_BYTES) if readable else b""
        if chunk:
            yield chunk
        elif ended:
            return
        elif readable:  # it has closed its output, and runs
            process.wait()


def _write_files(files: Mapping[str, str], folder: Path) -> dict[str, str]:
    copies = {}
    for number, (argument, text) in enumerate(files.items()):
        path = folder / f"{number}-{Path(argument.rpartition('=')[2]).name}"
        path.write_text(text, encoding="utf-8")
        option, equals, _ = argument.rpartition("=")
        copies[argument] = f"{option}{equals}{path}"
    return copies


def _signal_group(pid: int, number: signal.Signals) -> None:
    try:
        os.killpg(pid, number)
    except ProcessLookupError:  # it has ended
        return
