"""A port to use later, and one that listens."""

from __future__ import annotations

import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager


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


@contextmanager
def listening() -> Iterator[str]:
    """The address of a server that accepts connections and answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
