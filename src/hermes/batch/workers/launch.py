"""Starts a worker process, which then waits to be told its job.

Imports nothing that takes time: a command starts its first worker before it reads its own modules, its
settings and its dataset, so that the two get ready side by side.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def launch() -> subprocess.Popen[bytes]:
    """`python -m hermes.batch.workers.worker`, with pipes. It exits when its standard input ends."""
    return subprocess.Popen(
        [sys.executable, "-m", "hermes.batch.workers.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C at the terminal is the parent's to handle
    )


@contextmanager
def launched_early() -> Iterator[subprocess.Popen[bytes]]:
    """A worker for whoever comes to need one; killed in the end if nobody did."""
    with launch() as process:
        try:
            yield process
        finally:
            process.kill()
