"""Starts a worker process, which then waits for its job on standard input.

Imports nothing slow: a command starts its first worker before it loads its own modules, settings and dataset,
so that both start up in parallel.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def launch() -> subprocess.Popen[bytes]:
    """`python -m hermes.batch.workers.worker`, with pipes. It exits when its standard input ends."""
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "hermes.batch.workers.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C at the terminal is the parent's to handle
    )


@contextmanager
def launch_early() -> Iterator[subprocess.Popen[bytes]]:
    """Starts a worker ahead of time; it is killed at the end of the block."""
    with launch() as process:
        try:
            yield process
        finally:
            process.kill()
