"""Ports for a run's servers: the well-known one if it is free, otherwise any free one."""

from __future__ import annotations

import socket
from collections.abc import Collection

API_PORT = 8000
ENGINE_PORT = 8001


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
    """A free port that is not reserved for another run."""
    if preferred not in reserved and is_free(preferred):
        return preferred
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in reserved:
            return port
