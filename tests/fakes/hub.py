"""A small hub on the loopback interface: takes dataset commits as the real one does, and remembers them."""

from __future__ import annotations

import base64
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Hub:
    url: str = ""
    token: str = ""
    """The one token that may write."""
    created: list[dict[str, object]] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)


@contextmanager
def serve_hub(token: str) -> Iterator[Hub]:
    hub = Hub(token=token)
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            """It has no models; the real one answers those who sent no token with 401."""
            hub.requests.append(self.path)
            self._answer(401, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})

        def do_POST(self) -> None:
            body = self._body()
            hub.requests.append(self.path)
            if self.headers.get("Authorization") != f"Bearer {hub.token}":
                self._answer(401, {"error": "Invalid credentials"})
            elif self.path == "/api/repos/create":
                asked = json.loads(body)
                hub.created.append(asked)
                self._answer(200, {"url": f"{hub.url}/datasets/{asked['organization']}/{asked['name']}"})
            elif "/preupload/" in self.path:
                files = json.loads(body)["files"]
                plain = [{"path": f["path"], "uploadMode": "regular", "shouldIgnore": False} for f in files]
                self._answer(200, {"files": plain})
            elif "/commit/" in self.path:
                self._commit(body)
            else:
                self._answer(200, {"errors": [], "warnings": []})

        def _commit(self, body: bytes) -> None:
            for line in body.splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    hub.files[entry["value"]["path"]] = base64.b64decode(entry["value"]["content"])
            url = f"{hub.url}{self.path.removeprefix('/api').split('/commit/')[0]}/commit/{'1' * 40}"
            self._answer(200, {"commitUrl": url, "commitOid": "1" * 40, "success": True})

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
                parts = []
                while size := int(self.rfile.readline().split(b";")[0], 16):
                    parts.append(self.rfile.read(size))
                    self.rfile.readline()
                self.rfile.readline()
                return b"".join(parts)
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))

        def _answer(self, status: int, data: dict[str, object], headers: Mapping[str, str] = {}) -> None:
            body = json.dumps(data).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Silent."""

    return Handler
