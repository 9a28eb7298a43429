"""Where a worker runs, as its front sees it: a process of this machine, or an actor of a Ray cluster."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any, Protocol


class ReplicaProcess(Protocol):
    """Started when it is created."""

    @property
    def pid(self) -> int: ...

    def connect(self) -> Connection[Any, Any]:
        """Waits for the worker's end of the connection. Called once.

        OSError: the worker ended first. HermesError: why it cannot be used.
        """
        ...

    def kill(self) -> None:
        """Ends it at once; one that has ended is no error."""
        ...

    def wait(self, timeout_s: float | None = None) -> bool:
        """Whether it has ended, after at most that time."""
        ...

    def describe_end(self) -> str:
        """How it ended, as the end of a sentence; waits for it."""
        ...


class LocalProcess:
    """A process of this machine, connected by a private socket pair."""

    def __init__(self, environ: Mapping[str, str]) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", "hermes.engine.replicas.worker", str(theirs.fileno())],
                env={**os.environ, **environ},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the front, which ends its workers
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def connect(self) -> Connection[Any, Any]:
        return Connection(self._ours.detach())

    def kill(self) -> None:
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGKILL)

    def wait(self, timeout_s: float | None = None) -> bool:
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def describe_end(self) -> str:
        code = self._process.wait()
        return f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
