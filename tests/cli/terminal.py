"""A real terminal for a real process: type into it, read what it shows."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|\x1b\][^\x07]*\x07|\r")


class Terminal:
    def __init__(self, descriptor: int, pid: int) -> None:
        self._descriptor = descriptor
        self.pid = pid
        self._shown = ""
        self._read_to = 0

    def type(self, text: str) -> None:
        os.write(self._descriptor, text.encode())

    def line(self, text: str) -> None:
        self.type(text + "\r")

    def resize(self, rows: int, columns: int) -> None:
        fcntl.ioctl(self._descriptor, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def modes(self) -> list[object]:
        """Those that a program on the terminal has set."""
        return termios.tcgetattr(self._descriptor)

    def expect(self, pattern: str, timeout_s: float = 60.0) -> str:
        """Waits until the pattern is shown after what was already expected; returns the text up to it."""
        deadline = time.monotonic() + timeout_s
        while True:
            plain = _ANSI.sub("", self._shown)
            found = re.search(pattern, plain[self._read_to :])
            if found:
                start, self._read_to = self._read_to, self._read_to + found.end()
                return plain[start : self._read_to]
            if time.monotonic() > deadline or not self._more(deadline):
                raise AssertionError(f"{pattern!r} never appeared in:\n{plain[self._read_to :]}")

    def _more(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return False
        try:
            data = os.read(self._descriptor, 65536)
        except OSError:
            return False
        if b"\x1b[6n" in data:  # it asks where the cursor is
            self.type("\x1b[1;1R")
        self._shown += data.decode("utf-8", "replace")
        return bool(data)

    def wait(self) -> int:
        """The exit code, once the process has ended."""
        with contextlib.suppress(AssertionError):
            self.expect(r"(?!x)x", timeout_s=30.0)
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@contextmanager
def hermes_terminal(home: Path, *arguments: str, cwd: Path | None = None) -> Iterator[Terminal]:
    pid, descriptor = pty.fork()
    if pid == 0:
        os.chdir(cwd or home)
        environment = {
            "HERMES_HOME": str(home),
            "HOME": str(home),
            "TERM": "xterm",
            "PATH": os.environ["PATH"],
        }
        os.execve(sys.executable, [sys.executable, "-m", "hermes", *arguments], environment)
    try:
        yield Terminal(descriptor, pid)
    finally:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
        os.close(descriptor)
