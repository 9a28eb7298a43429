"""A proxy before the trajectory API that keeps the groups that pass through it, as they were sent."""

from __future__ import annotations

import gzip
import http.client
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

_FORWARDED = ("Content-Type", "Content-Encoding", "Idempotency-Key")


@contextmanager
def recording_proxy(api_port: int) -> Iterator[tuple[str, list[bytes]]]:
    """Its address, and the bodies posted to /scored_data, inflated."""
    bodies: list[bytes] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            if self.path == "/scored_data":
                inflated = self.headers.get("Content-Encoding") == "gzip"
                bodies.append(gzip.decompress(body) if inflated else body)
            connection = http.client.HTTPConnection("127.0.0.1", api_port, timeout=60)
            headers = {name: self.headers[name] for name in _FORWARDED if name in self.headers}
            connection.request(self.command, self.path, body, headers)
            answer = connection.getresponse()
            data = answer.read()
            connection.close()
            self.send_response(answer.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        do_POST = do_GET

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        server.server_close()
