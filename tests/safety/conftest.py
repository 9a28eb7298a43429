"""A real HTTP server on loopback that counts who comes."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from hypothesis import settings

settings.register_profile("untimed", deadline=None, database=None)
settings.load_profile("untimed")


class Site(ThreadingHTTPServer):
    """Pages by path: status, headers, body. `hits` are the (host header, path) pairs that arrived."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.hits: list[tuple[str, str]] = []
        self.pages: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.hang = threading.Event()

    @property
    def port(self) -> int:
        return int(self.server_address[1])

    def url(self, path: str = "/") -> str:
        return f"http://127.0.0.1:{self.port}{path}"


class _Handler(BaseHTTPRequestHandler):
    server: Site

    def do_GET(self) -> None:
        self.server.hits.append((self.headers.get("Host", ""), self.path))
        if self.path == "/hang":
            self.server.hang.wait(30)
        status, headers, body = self.server.pages.get(
            self.path, (200, {"Content-Type": "text/plain"}, b"hello")
        )
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@contextmanager
def _serving() -> Iterator[Site]:
    server = Site()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.hang.set()
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture
def site() -> Iterator[Site]:
    with _serving() as server:
        yield server


@pytest.fixture
def canary() -> Iterator[Site]:
    """A server that nobody may reach."""
    with _serving() as server:
        yield server


def bomb(size: int) -> bytes:
    return gzip.compress(bytes(size))
