"""Ports for a run's servers: the well-known one if it is free, otherwise any free one.

A server needs seconds until it listens. Until then its port looks free, so `choose` claims it for this
process by a lock in a directory that all processes of the user share: a command that starts meanwhile gets
another.
"""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Collection
from pathlib import Path

from hermes.disk.filelock import FileLock

API_PORT = 8000
ENGINE_PORT = 8001
FLEET_PORT = 8003
_CLAIMS: dict[int, FileLock] = {}
"""Ports of this process; the system releases their locks when it ends."""


def is_free(port: int) -> bool:
    """Whether a server could listen on this port of loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def choose(preferred: int, reserved: Collection[int] = ()) -> int:
    """A free port that no other process has chosen, and that is not reserved for another run."""
    if preferred not in reserved and is_free(preferred) and _claim(preferred):
        return preferred
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in reserved and _claim(port):
            return port


def _claim(port: int) -> bool:
    """False: another process has claimed it. Without a directory for the locks nothing can be claimed."""
    if port in _CLAIMS:
        return True
    folder = Path(tempfile.gettempdir()) / f"hermes-ports-{os.getuid()}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        if folder.lstat().st_uid != os.getuid():
            return True  # another user of the machine made it
        lock = FileLock(folder / str(port))
        if not lock.acquire(blocking=False):
            return False
    except OSError:
        return True
    _CLAIMS[port] = lock
    return True
