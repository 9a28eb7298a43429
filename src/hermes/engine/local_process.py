"""A further process of the engine on this machine."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any


class LocalProcess:
    """A process of this machine, connected by a private socket pair."""

    def __init__(self, module: str, environ: Mapping[str, str]) -> None:
        """Runs the module with the number of its end's descriptor as the only argument."""
        self._ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", module, str(theirs.fileno())],
                env={**os.environ, **environ},
                pass_fds=(theirs.fileno(),),
                stdin=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the first process, which ends the others
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
