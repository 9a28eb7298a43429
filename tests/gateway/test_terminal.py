"""`hermes record -- COMMAND` in a terminal: keys, sizes, interrupts and modes are the command's."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from hermes.config.load import Config
from tests.cli.terminal import Terminal, hermes_terminal

FULL_SCREEN = """
import os, signal, sys, termios, tty

def show(text):
    os.write(1, (text + "\\r\\n").encode())

def show_size(*_):
    columns, rows = os.get_terminal_size(0)
    show(f"size {rows}x{columns}.")

before = termios.tcgetattr(0)
tty.setraw(0)
signal.signal(signal.SIGWINCH, show_size)
show_size()
while (key := os.read(0, 1)) != b"q":
    show(f"key {key!r}.")
    if key == b"k":
        os.kill(os.getpid(), signal.SIGKILL)
termios.tcsetattr(0, termios.TCSANOW, before)
try:
    show("cooked.")
    signal.pause()
except KeyboardInterrupt:
    show("interrupted.")
    sys.exit(5)
"""


@contextmanager
def recorded(config: Config, project: Path, *command: str) -> Iterator[tuple[Terminal, list[object]]]:
    """A command in a terminal, with the terminal's modes from before."""
    config.home.mkdir(exist_ok=True)
    with hermes_terminal(config.home, "record", "--", *command, cwd=project) as terminal:
        before = terminal.modes()
        yield terminal, before


def test_keys_sizes_and_interrupts_reach_a_full_screen_program(config: Config, tmp_path: Path) -> None:
    with recorded(config, tmp_path, sys.executable, "-c", FULL_SCREEN) as (terminal, before):
        terminal.expect(r"size \d+x\d+\.")
        assert terminal.modes() != before
        terminal.resize(41, 133)
        terminal.expect(r"size 41x133\.")
        terminal.type("\x03")  # in raw mode Ctrl-C is a key
        terminal.expect(r"key b'\\x03'\.")
        terminal.type("\x1b[A")
        terminal.expect(r"key b'A'\.")
        terminal.type("q")
        terminal.expect(r"cooked\.")
        terminal.type("\x03")  # and here it is an interrupt
        terminal.expect(r"interrupted\.")
        terminal.expect(r"recorded: no call of a model")
        assert terminal.modes() == before
        assert terminal.wait() == 5


def test_the_terminal_of_a_program_that_was_killed_is_as_it_was(config: Config, tmp_path: Path) -> None:
    with recorded(config, tmp_path, sys.executable, "-c", FULL_SCREEN) as (terminal, before):
        terminal.expect(r"size \d+x\d+\.")
        terminal.type("k")
        terminal.expect(r"recorded: no call of a model")
        assert terminal.modes() == before
        assert terminal.wait() == 128 + signal.SIGKILL


@pytest.mark.parametrize("name", ["TERM", "INT", "SEGV"])
def test_a_command_that_a_signal_ends_gives_its_number(config: Config, tmp_path: Path, name: str) -> None:
    with recorded(config, tmp_path, "sh", "-c", f"kill -{name} $$") as (terminal, _):
        terminal.expect(r"recorded: no call of a model")
        assert terminal.wait() == 128 + signal.Signals[f"SIG{name}"]
