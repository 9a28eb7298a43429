"""Imports a file that somebody else wrote into this process, so that whatever the file does there is said.

A file can end the process that imports it (os._exit, a crash, memory that runs out), raise SystemExit, print
over our output or close it, or never end. While it is imported, its output goes to standard error, SystemExit
and its like are errors of the file, an import that takes long is named, and a witness, a shell that waits,
says so if the process ends. This is no protection: the file runs as this user. Commands that only look at a
file call it in a child process first (sandbox.child_call).
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes.errors import UsageError
from hermes.safety.text import printable

_WITNESS = ("/bin/sh", "-c", 'read -r _ || printf "%s\\n" "$1" >&2', "sh")
"""It prints its argument unless a line arrives before the end of its input."""
_SLOW_S = 60.0
_parents: list[int] = []
"""The parent, in a process whose parent says how it ended."""


@contextmanager
def importing(file: Path) -> Iterator[None]:
    """While a file is imported. UsageError: it ended the import by something that is no Exception."""
    sign = threading.Timer(_SLOW_S, _say_slow, [file])
    sign.daemon = True
    sign.start()
    try:
        with witnessed(f"{file} was imported"), _output_elsewhere():
            yield
    except (Exception, KeyboardInterrupt):
        raise
    except BaseException as error:
        raise UsageError(
            f"{file}{line_in(file, error)} ends the process when it is imported: {described(error)}",
            f"Call it under if __name__ == '__main__', so that {file.name} can be imported.",
        ) from error
    finally:
        sign.cancel()


@contextmanager
def witnessed(event: str) -> Iterator[None]:
    """If the process ends meanwhile without coming back here, a shell says that it was while `event`."""
    if _parents:
        yield
        return
    sentence = (
        f"error: the process ended while {event}: the file or a library ended it (os._exit, a crash), "
        "or it was killed, as the system does when no memory is left"
    )
    witness = subprocess.Popen([*_WITNESS, printable(sentence)], stdin=subprocess.PIPE)
    owner = os.getpid()
    try:
        yield
    finally:
        if os.getpid() == owner:  # a child that was forked meanwhile is not who is waited for
            assert witness.stdin is not None
            with contextlib.suppress(OSError, ValueError):  # the file closed what it did not open
                witness.stdin.write(b"\n")
                witness.stdin.close()
            witness.wait()


@contextmanager
def _output_elsewhere() -> Iterator[None]:
    """Standard output goes to standard error, and is as before afterwards, whatever was closed meanwhile."""
    stream = sys.stdout
    try:
        stream.flush()
        number, error_output = os.dup(1), os.dup(2)
    except (OSError, ValueError, AttributeError):  # there is no output that could be mixed up
        yield
        return
    os.dup2(2, 1)
    # Not closed: a log handler that the file made may keep it.
    sys.stdout = os.fdopen(error_output, "w", buffering=1, errors="backslashreplace")
    try:
        yield
    finally:
        sys.stdout = stream
        os.dup2(number, 1)
        os.close(number)


def trust_parent() -> None:
    """No witness is needed from now on: this process is a child whose parent says how it ended."""
    _parents.append(os.getppid())


def parent_watches() -> bool:
    """Whether this process is such a child."""
    return bool(_parents)


def _say_slow(file: Path) -> None:
    sys.stderr.write(
        f"{printable(str(file))} is still being imported after {_SLOW_S:.0f} s; Ctrl-C ends it\n"
    )


def described(error: BaseException) -> str:
    """Its type, and its text if it has one."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def line_in(file: Path, error: BaseException) -> str:
    """`:line` of the file, if the error passed through it."""
    if isinstance(error, SyntaxError):
        return f":{error.lineno}" if error.lineno else ""
    line, trace = None, error.__traceback__
    while trace is not None:
        if Path(trace.tb_frame.f_code.co_filename).name == file.name:
            line = trace.tb_lineno
        trace = trace.tb_next
    return f":{line}" if line else ""
