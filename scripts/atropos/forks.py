"""Starts runs by forking a process that has imported what every run needs: most of a short run is imports."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path


class ForkedRun:
    """A run in a process group of its own."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode = 0
        self._ended = threading.Event()

    def end(self, returncode: int) -> None:
        self.returncode = returncode
        self._ended.set()

    @property
    def running(self) -> bool:
        return not self._ended.is_set()

    def wait(self, limit_s: float) -> bool:
        """Whether it has ended by itself within the limit; what is left of its processes is killed."""
        ended = self._ended.wait(limit_s)
        with suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self._ended.wait()
        return ended


class ForkServer:
    """The process of one side; it runs one run at a time."""

    def __init__(self, command: Sequence[str], variables: Mapping[str, str]) -> None:
        self._command = list(command)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self._process = subprocess.Popen(list(command), env=dict(variables), **pipes)  # type: ignore[call-overload]

    def start(
        self, arguments: Sequence[str], folder: Path, variables: Mapping[str, str], log: Path
    ) -> ForkedRun:
        request = {"arguments": list(arguments), "folder": str(folder), "log": str(log)}
        self._process.stdin.write(json.dumps({**request, "variables": dict(variables)}) + "\n")
        self._process.stdin.flush()
        run = ForkedRun(self._read_number())
        threading.Thread(target=lambda: run.end(self._read_number()), daemon=True).start()
        return run

    def _read_number(self) -> int:
        """A process that has died ends the comparison, whichever thread reads: no later run can start."""
        line = self._process.stdout.readline()
        if not line:
            sys.stderr.write(f"{' '.join(self._command)} ended with status {self._process.wait()}\n")
            os._exit(2)
        return int(line)

    def close(self) -> None:
        self._process.stdin.close()
        self._process.wait()
