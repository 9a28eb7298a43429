"""Ports for a run's servers: the well-known one where it is free, otherwise any that is."""

from __future__ import annotations

import socket
from collections.abc import Collection

API_PORT = 8000
ENGINE_PORT = 8001


def is_free(port: int) -> bool:
    """Whether a server could listen there on loopback now."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def choose(preferred: int, taken: Collection[int] = ()) -> int:
    """A port that nobody listens on and no other run has been promised (`taken`)."""
    if preferred not in taken and is_free(preferred):
        return preferred
    while True:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
        if port not in taken:
            return port
