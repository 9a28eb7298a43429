"""The trainer's side of a trajectory API that speaks the original's contract and nothing more."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hermes.training.api import NO_LEASE, Batch, TrainerApi

GROUP = {"tokens": [[5, 6]], "masks": [[-100, 6]], "scores": [1.0]}


class Original(BaseHTTPRequestHandler):
    """Serves one batch, without a lease, and then none; it has no route to acknowledge one."""

    asked: list[str]
    batches: list[list[dict[str, object]]]

    def do_GET(self) -> None:
        self.asked.append(f"GET {self.path.split('?')[0]}")
        self._answer(200, {"batch": self.batches.pop() if self.batches else None})

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.asked.append(f"POST {self.path}")
        self._answer(200 if self.path == "/register" else 404, {"uuid": 1})

    def _answer(self, status: int, body: dict[str, object]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@pytest.fixture
def original() -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    handler = type("Handler", (Original,), {"asked": asked, "batches": [[GROUP]]})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", asked
    server.shutdown()
    server.server_close()


def test_a_batch_without_a_lease_is_taken_once_and_never_asked_for_again(
    original: tuple[str, list[str]],
) -> None:
    url, asked = original
    with TrainerApi(url, patience_s=5) as api:
        api.register({"batch_size": 1})
        batch = api.next_batch()
        assert batch == Batch(NO_LEASE, [GROUP])
        assert api.again(NO_LEASE) is None
        api.acknowledge(NO_LEASE)
        assert api.next_batch() == "nothing is queued"
    assert asked == ["POST /register", "GET /batch", "GET /batch"]
