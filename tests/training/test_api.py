"""The trainer's side of the trajectory API: of ours, and of one that speaks the original's contract only."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from hermes.training.data.api import NO_LEASE, LeasedBatch, NoBatch, TrainerApi
from tests.training.world import ask
from tests.waiting import wait_until

REGISTRATION = {
    "wandb_group": "g",
    "wandb_project": "p",
    "batch_size": 1,
    "max_token_len": 64,
    "checkpoint_dir": "",
    "save_checkpoint_interval": 1,
    "starting_step": 0,
    "num_steps": 9,
}
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
        assert batch == LeasedBatch(NO_LEASE, [GROUP])
        assert api.redeliver(NO_LEASE) is None
        api.acknowledge(NO_LEASE)
        assert api.next_batch() == NoBatch("nothing is queued")
    assert asked == ["POST /register", "GET /batch", "GET /batch"]


def test_a_lease_lives_as_long_as_its_trainer(api: str) -> None:
    """A step may take longer than the lease: the batch is neither lost nor served to anybody else."""
    with TrainerApi(api, patience_s=5, lease_s=2) as trainer:
        trainer.register(REGISTRATION)
        ask(api, "POST", "/scored_data", GROUP)
        batch = trainer.next_batch()
        assert isinstance(batch, LeasedBatch)
        time.sleep(2.5)
        assert ask(api, "GET", "/status")["leases"] == {"outstanding": 1, "lost": 0}
        assert trainer.next_batch() == NoBatch("no groups are queued", envs_connected=0)
        trainer.acknowledge(batch.lease_id)
        assert ask(api, "GET", "/status")["leases"] == {"outstanding": 0, "lost": 0}
    with TrainerApi(api, patience_s=5, lease_s=0.4) as trainer:
        ask(api, "POST", "/scored_data", GROUP)
        assert isinstance(trainer.next_batch(), LeasedBatch)
    wait_until(lambda: ask(api, "GET", "/status")["leases"] == {"outstanding": 0, "lost": 1})


def test_leases_of_a_former_life_are_renewed_before_their_batches_are_asked_for(api: str) -> None:
    with TrainerApi(api, patience_s=5, lease_s=2) as trainer:
        trainer.register(REGISTRATION)
        ask(api, "POST", "/scored_data", GROUP)
        batch = trainer.next_batch()
        assert isinstance(batch, LeasedBatch)
    with TrainerApi(api, patience_s=5, lease_s=2) as resumed:
        resumed.keep_leases([batch.lease_id])
        time.sleep(2.5)
        assert ask(api, "GET", "/status")["leases"] == {"outstanding": 1, "lost": 0}
        again = resumed.redeliver(batch.lease_id)
        assert again is not None
        assert again.groups == batch.groups


def test_an_api_that_cannot_renew_leases_is_asked_once(original: tuple[str, list[str]]) -> None:
    url, requests = original
    with TrainerApi(url, patience_s=5, lease_s=0.1) as trainer:
        trainer.register({"batch_size": 1})
        trainer.keep_leases([7])
        wait_until(lambda: "POST /batch/renew" in requests)
        time.sleep(0.3)
    assert requests == ["POST /register", "POST /batch/renew"]
