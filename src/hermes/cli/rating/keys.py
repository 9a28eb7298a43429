"""Single keys from the terminal, typed ahead or not: no key is lost between two questions."""

from __future__ import annotations

import os
import select
import sys
import termios
import tty
from collections.abc import Iterator
from contextlib import contextmanager

_ESCAPE_S = 0.05
_MOST_BYTES = 16


@contextmanager
def key_mode() -> Iterator[None]:
    """Keys arrive one by one and are not echoed. Ctrl-C still interrupts."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    tty.setcbreak(descriptor, termios.TCSANOW)  # what was typed ahead stays
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


@contextmanager
def line_mode() -> Iterator[None]:
    """Inside `key_mode`: lines, edited and echoed as usual."""
    descriptor = sys.stdin.fileno()
    before = termios.tcgetattr(descriptor)
    lines = termios.tcgetattr(descriptor)
    lines[3] |= termios.ICANON | termios.ECHO
    termios.tcsetattr(descriptor, termios.TCSANOW, lines)
    try:
        yield
    finally:
        termios.tcsetattr(descriptor, termios.TCSANOW, before)


def read_key() -> str:
    """One key; an arrow is its whole escape sequence; Ctrl-D if the terminal is gone."""
    descriptor = sys.stdin.fileno()
    data = os.read(descriptor, 1)
    if data == b"\x1b":
        while len(data) < _MOST_BYTES and select.select([descriptor], [], [], _ESCAPE_S)[0]:
            data += os.read(descriptor, 1)
            if len(data) > 2 and data[-1:].isalpha():
                break
    return data.decode("ascii", "replace") or "\x04"
