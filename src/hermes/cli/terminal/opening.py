"""Signs of life that need no help from the work: until a command prints something, and between its lines.

Every command has the first, `opening`, so that none is silent while it reads modules or waits for a lock, a
slow disk or a server. Both are a `Waiting` on standard error that watches what is written to standard output
and standard error. They are quiet while another sign says more exactly what the command waits for.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hermes.cli.terminal.waiting import LINE_EVERY_S, Waiting, sign_is_shown

_openings: list[_Watch] = []
"""At most one: that of the command of this process."""


class _Watch:
    """A sign that a write ends, or, with `again`, interrupts."""

    def __init__(self, text: str, *, again: bool) -> None:
        self._text = text
        self._again = again
        self._lock = threading.RLock()  # the write of a stream calls that of its buffer
        self._sign = Waiting(is_quiet=sign_is_shown)
        self._watched: list[Any] = []
        for stream in (sys.stdout, sys.stderr):
            self._watch(stream)
            if buffer := getattr(stream, "buffer", None):
                self._watch(buffer)
        self._sign.start(text)

    def end(self) -> None:
        """The streams are as they were before."""
        with self._lock:
            self._sign.stop()
            while self._watched:
                del self._watched.pop().write

    def _watch(self, stream: Any) -> None:
        write: Callable[[Any], int] = stream.write

        def noticed_write(data: Any) -> int:
            if self._sign.is_current_thread():
                return write(data)
            if not self._again:
                self.end()
                return write(data)
            with self._lock:
                self._sign.stop()
                count = write(data)
                if data[-1:] in ("\n", b"\n"):
                    self._sign.start(self._text, LINE_EVERY_S)
            return count

        stream.write = noticed_write
        self._watched.append(stream)


@contextmanager
def opening() -> Iterator[None]:
    """The sign for as long as the block has printed nothing."""
    sign = _Watch("working", again=False)
    _openings.append(sign)
    try:
        yield
    finally:
        sign.end()
        _openings.remove(sign)


def end_opening() -> None:
    """Ends the sign of the command, if it has one: it hands the terminal to another program."""
    for sign in _openings:
        sign.end()


@contextmanager
def between_lines(text: str) -> Iterator[None]:
    """The sign whenever the block prints nothing, for work whose lines come from elsewhere, such as a log."""
    end_opening()
    sign = _Watch(text, again=True)
    try:
        yield
    finally:
        sign.end()
