"""The log of an MCP server's standard error: private, bounded, and without known secrets."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from hermes.disk.files import ensure_dir

MAX_BYTES = 20_000_000
_MAX_LINE_BYTES = 1_000_000


@contextmanager
def redacted_log(path: Path, redact: Callable[[str], str]) -> Iterator[TextIO]:
    """A stream for a child process whose lines are redacted and then written to `path`, mode 0600.

    A secret that is broken over several lines is not found. What exceeds MAX_BYTES is dropped, and so is what
    the child's own children write after the block has ended.
    """
    ensure_dir(path.parent)
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    os.fchmod(target, 0o600)
    source, sink = os.pipe()
    copier = threading.Thread(target=_copy, args=(source, target, redact), daemon=True, name="mcp-log")
    copier.start()
    try:
        with os.fdopen(sink, "w") as stream:
            yield stream
    finally:
        copier.join(timeout=2.0)  # a process that the server left behind may still hold the pipe


def _copy(source: int, target: int, redact: Callable[[str], str]) -> None:
    room = MAX_BYTES
    with os.fdopen(source, "rb") as lines, os.fdopen(target, "wb", buffering=0) as log:
        while line := lines.readline(_MAX_LINE_BYTES):
            data = redact(line.decode("utf-8", "replace")).encode("utf-8", "replace")[:room]
            room -= len(data)
            log.write(data)
