"""A port to use later."""

from __future__ import annotations

import secrets
import socket


def free_port() -> int:
    """Below those that the system gives to connections: nobody is given this one in the meantime."""
    while True:
        port = 10_000 + secrets.randbelow(20_000)
        with socket.socket() as tried:
            tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
