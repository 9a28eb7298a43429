"""A web server that is killed between two requests."""

from __future__ import annotations

import signal
import subprocess


class KilledServer:
    """A server that is started again after it was killed."""

    def __init__(self, command: list[str], environ: dict[str, str]) -> None:
        self._command = command
        self._environ = environ
        self.starts = 0

    def __enter__(self) -> KilledServer:
        self._start()
        return self

    def __exit__(self, *error: object) -> None:
        self.kill()
        self._process.wait()

    def kill(self) -> None:
        self.send(signal.SIGKILL)

    def send(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def restart_if_dead(self) -> None:
        try:
            self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            return
        self._start()

    def restart(self) -> None:
        """After it was killed."""
        self._process.wait()
        self._start()

    def _start(self) -> None:
        self._process = subprocess.Popen(
            self._command, env=self._environ, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        assert self._process.stdout is not None
        self._process.stdout.readline()
        self.starts += 1
