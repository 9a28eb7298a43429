"""A sign of life while a command waits: what it waits for, and for how long.

On a terminal it is one line that counts the seconds and disappears; elsewhere a plain line after two seconds
and then every ten. It is written to standard error by a thread, so it also works while the main thread is
busy. It never stops the work: a closed stream is ignored.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

_SHOW_AFTER_S = 1.0
_LINE_AFTER_S = 2.0
LINE_EVERY_S = 10.0
_ERASE = "\r\x1b[K"


def can_redraw(stream: TextIO) -> bool:
    """Whether a line on this stream can be written again: a terminal that is not dumb."""
    return stream.isatty() and os.environ.get("TERM", "dumb") != "dumb"


class Waiting:
    """Starts and stops the sign; one period at a time. `stop` returns after the line is erased."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._text = ""
        self._line_after_s = _LINE_AFTER_S
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self, text: str, line_after_s: float = _LINE_AFTER_S) -> None:
        """Begins a period; a running one ends. `line_after_s`: when the first line comes off a terminal."""
        self.stop()
        self._text, self._line_after_s = text, line_after_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._show, name="hermes-waiting", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Ends the period, if there is one."""
        if self._thread is None:
            return
        self._stopped.set()
        self._thread.join()
        self._thread = None

    def _show(self) -> None:
        started_s = time.monotonic()
        live = can_redraw(self._stream)
        drawn = False
        pause_s = _SHOW_AFTER_S if live else self._line_after_s
        while not self._stopped.wait(pause_s):
            elapsed = f" … {time.monotonic() - started_s:.0f} s"
            if live:  # a line that wraps could not be erased
                room = shutil.get_terminal_size().columns - len(elapsed) - 1
                self._write(f"{_ERASE}{self._text[: max(0, room)]}{elapsed}")
            else:
                self._write(f"({self._text}{elapsed})\n")
            drawn = True
            pause_s = _SHOW_AFTER_S if live else LINE_EVERY_S
        if live and drawn:
            self._write(_ERASE)

    def _write(self, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # the reader is closed
            self._stream.write(text)
            self._stream.flush()


@contextmanager
def waiting(text: str, stream: TextIO | None = None) -> Iterator[None]:
    """The sign of life for as long as the block takes."""
    sign = Waiting(stream)
    sign.start(text)
    try:
        yield
    finally:
        sign.stop()
