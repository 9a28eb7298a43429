"""The sign of life from the start of a command until it prints something.

Every command has it, so that none is silent while it reads modules or waits for a lock, a slow disk or a
server. It is a `Waiting` on standard error. The first write to standard output or standard error ends it, and
so does `end_opening`, for a command that hands the terminal to another program. It is quiet while another
sign says more exactly what the command waits for.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hermes.cli.terminal.waiting import Waiting, sign_is_shown

_TEXT = "working"
_openings: list[_Opening] = []
"""At most one: that of the command of this process."""


class _Opening:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sign = Waiting(is_quiet=sign_is_shown)
        self._watched: list[Any] = []
        for stream in (sys.stdout, sys.stderr):
            self._watch(stream)
            if buffer := getattr(stream, "buffer", None):
                self._watch(buffer)
        self._sign.start(_TEXT)

    def end(self) -> None:
        if self._sign.is_current_thread():
            return
        with self._lock:
            if self._watched:
                self._sign.stop()
            while self._watched:
                del self._watched.pop().write

    def _watch(self, stream: Any) -> None:
        write: Callable[[Any], int] = stream.write

        def end_and_write(data: Any) -> int:
            self.end()
            return write(data)

        stream.write = end_and_write
        self._watched.append(stream)


@contextmanager
def opening() -> Iterator[None]:
    """The sign for as long as the block has printed nothing."""
    sign = _Opening()
    _openings.append(sign)
    try:
        yield
    finally:
        sign.end()
        _openings.remove(sign)


def end_opening() -> None:
    """Ends the sign of the command, if it has one."""
    for sign in _openings:
        sign.end()
