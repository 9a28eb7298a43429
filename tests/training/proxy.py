"""A server between trainer and engine that changes what passes: how training is sabotaged in tests."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

Change = Callable[[str, Any], Any]
"""Path and JSON body → body."""


@contextmanager
def proxy(
    engine_url: str,
    change: Change = lambda path, body: body,
    only: str = "/",
    hear: Callable[[str, bytes], None] = lambda path, body: None,
) -> Iterator[str]:
    """Its address. JSON bodies go through `change`; everything else passes as it is.

    `only`: what other paths there are is a 404, as on a server that does not have them. `hear` is told what
    goes to the engine, before anything is changed.
    """
    target = urlsplit(engine_url).netloc

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _pass(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hear(self.path, body)
            if not self.path.startswith(only):
                self.send_error(404)
                return
            if body and "json" in (self.headers.get("Content-Type") or ""):
                body = json.dumps(change(self.path, json.loads(body))).encode()
            headers = {
                name: value for name, value in self.headers.items() if name.lower() != "content-length"
            }
            connection = http.client.HTTPConnection(target, timeout=120)
            connection.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
            answer = connection.getresponse()
            content = answer.read()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("content-length", "transfer-encoding", "connection"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
            connection.close()

        do_GET = do_POST = do_DELETE = do_PUT = _pass

        def log_message(self, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def stale_sampler() -> Callable[[str, Any], Any]:
    """Whoever asks for a checkpoint's weights gets the first one's."""
    first: list[str] = []

    def change(path: str, body: Any) -> Any:
        if path.endswith("/create_sampling_session") and body.get("model_path"):
            first.append(body["model_path"])
            body["model_path"] = first[0]
        return body

    return change


def no_update(path: str, body: Any) -> Any:
    """The optimizer is asked, and does nothing."""
    if path.endswith("/optim_step"):
        body["adam_params"]["learning_rate"] = 0.0
    return body
