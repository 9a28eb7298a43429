"""A web app behind a slow line: pages arrive in pieces, and the browser paints after each of them.

Style sheets and scripts arrive at once, as from the browser's cache."""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from tests.web.site import WebSite

_PIECES = 12
_PAUSE_S = 0.07
"""Several frames of a browser."""
_KEPT_HEADERS = ("content-type", "cache-control", "location", "set-cookie")


@contextmanager
def drip(site: WebSite) -> Iterator[WebSite]:
    """The same pages at another address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            with suppress(ConnectionError, TimeoutError):  # the browser has left the page
                self._pass_on()

        def _pass_on(self) -> None:
            connection = http.client.HTTPConnection(site.host, timeout=60)
            try:
                connection.request("GET", self.path, headers={"cookie": self.headers.get("cookie", "")})
                response = connection.getresponse()
                body = response.read()
            finally:
                connection.close()
            self.send_response(response.status)
            for name in _KEPT_HEADERS:
                if value := response.headers.get(name):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            is_page = "text/html" in response.headers.get("content-type", "")
            size = len(body) // _PIECES + 1 if is_page else len(body) or 1
            for start in range(0, len(body), size):
                self.wfile.write(body[start : start + size])
                if is_page:
                    time.sleep(_PAUSE_S)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield WebSite(f"http://127.0.0.1:{server.server_address[1]}", site.home)
        finally:
            server.shutdown()
