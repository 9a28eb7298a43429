"""Progress lines of a long command, with a sign of life between them.

A line is printed as it comes, on a terminal and elsewhere; rate and remaining time are part of its text.
While nothing comes, `waiting` shows for how long: on a terminal from the first second on, elsewhere after two
seconds until the work has begun to print lines, and then after ten.
"""

from __future__ import annotations

import threading

import click

from hermes.cli.terminal.waiting import LINE_EVERY_S, Waiting


class ProgressLines:
    """A progress callback. Safe to call from any thread; the sign ends with the block."""

    def __init__(self, *, to_stderr: bool = False) -> None:
        """`to_stderr`: standard output belongs to the result, as with --json."""
        self._to_stderr = to_stderr
        self._sign = Waiting()
        self._lock = threading.Lock()

    def __call__(self, line: str) -> None:
        with self._lock:
            self._sign.stop()
            click.echo(line, err=self._to_stderr)
            self._sign.start(_subject(line), LINE_EVERY_S)

    def wait_for(self, subject: str) -> None:
        """Shows what the command waits for now; prints nothing if it comes at once."""
        with self._lock:
            self._sign.start(subject)

    def __enter__(self) -> ProgressLines:
        return self

    def __exit__(self, *exception: object) -> None:
        with self._lock:
            self._sign.stop()


def _subject(line: str) -> str:
    """The subject of the line: its last row up to the figures, which are set apart by two spaces."""
    rows = line.strip().splitlines()
    return rows[-1].strip().partition("  ")[0] if rows else "working"
