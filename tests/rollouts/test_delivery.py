"""A batch is served again if, and only if, it did not arrive."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.rollouts.conftest import Client, Launch, group, marks
from tests.waiting import wait_until

LONG = b',"inference_logprobs":' + json.dumps([[0.125] * 300_000]).encode() + b"}"
"""Makes a batch of four groups larger than what the kernel buffers between two sockets."""


def fill(api: Client, count: int, *, large: bool = False, **more: int | str) -> None:
    for mark in range(count):
        body = json.dumps(group(mark=mark, **more)).encode()
        answer = api.ask("POST", "/scored_data", raw=body[:-1] + LONG if large else body)
        assert answer.json() == {"status": "received"}


def raw_get(api: Client, path: str = "/batch") -> socket.socket:
    """Asks without reading the answer; the receive buffer is kept small, so that a large one cannot fit."""
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    connection.connect(("127.0.0.1", api.port))
    connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    return connection


def lost(api: Client) -> int:
    return int(api.get("/status")["leases"]["lost"])


def outstanding(api: Client) -> int:
    return int(api.get("/status")["leases"]["outstanding"])


def refused(api: Client) -> bool:
    """Whether the server no longer listens."""
    with socket.socket() as connection:
        return connection.connect_ex(("127.0.0.1", api.port)) != 0


def close_unread(connection: socket.socket) -> None:
    """What the kernel does when a process with unread data dies or closes: a reset."""
    assert connection.recv(1)
    connection.close()


def close_by_reset(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


@pytest.mark.parametrize("end", [close_unread, close_by_reset])
@pytest.mark.parametrize("large", [True, False])
def test_a_batch_whose_client_is_gone_is_served_again_unchanged_and_counted_once(
    api: Client, end: Callable[[socket.socket], None], large: bool
) -> None:
    api.register()
    fill(api, 8, large=large)
    connection = raw_get(api)
    wait_until(lambda: outstanding(api) == 1)
    end(connection)
    wait_until(lambda: lost(api) == 1)
    assert api.get("/status")["queue_size"] == 4, "a lost batch was counted as a step when it was served"
    again = api.get("/batch")
    assert marks(again["batch"]) == [0, 1, 2, 3]
    assert (again["redelivered"], again["step"]) == (1, 1)
    assert marks(api.batch()) == [4, 5, 6, 7]
    assert api.get("/status")["current_step"] == 2


def test_a_client_that_is_gone_before_it_is_answered_leaves_its_batch_to_the_next(api: Client) -> None:
    api.register()
    fill(api, 4)
    for _ in range(30):
        close_by_reset(raw_get(api))
    wait_until(lambda: outstanding(api) == 0)
    assert marks(api.batch()) == [0, 1, 2, 3]
    assert api.get("/status")["current_step"] == 1


def test_a_client_that_stops_reading_a_large_batch_gets_it_again_after_its_timeout(api: Client) -> None:
    api.register()
    fill(api, 4, large=True)
    connection = raw_get(api)
    assert b"200 OK" in connection.recv(100)
    assert api.batch() is None, "it is not served to anyone else as long as the connection stands"
    connection.close()
    wait_until(lambda: lost(api) == 1)
    assert marks(api.batch()) == [0, 1, 2, 3]


def test_a_batch_that_was_read_to_the_end_is_never_served_again(api: Client) -> None:
    api.register()
    fill(api, 4, large=True)
    assert marks(api.batch()) == [0, 1, 2, 3]
    wait_until(lambda: outstanding(api) == 0)
    assert lost(api) == 0
    assert api.batch() is None


@pytest.mark.parametrize("large", [True, False])
def test_a_batch_that_is_read_while_the_server_shuts_down_is_not_served_again(
    launch: Launch, tmp_path: Path, large: bool
) -> None:
    """The large one is still being sent; the other is in the server's kernel, with its response complete."""
    server = launch(state_dir=tmp_path)
    api = server.client
    api.register()
    fill(api, 4, large=large, images="x" * 50_000)
    with raw_get(api) as connection:
        wait_until(lambda: outstanding(api) == 1)
        server.process.send_signal(signal.SIGTERM)
        wait_until(lambda: refused(api))
        received = b""
        while piece := connection.recv(1 << 16):
            received += piece
    assert received.endswith(b'"redelivered": 0}')
    server.process.wait()
    again = launch(state_dir=tmp_path).client
    assert (again.batch(), lost(again)) == (None, 0)


@pytest.mark.slow
def test_a_batch_that_nobody_reads_does_not_hold_up_the_shutdown_and_is_served_again(
    launch: Launch, tmp_path: Path
) -> None:
    server = launch(state_dir=tmp_path)
    server.client.register()
    fill(server.client, 4, large=True)
    with raw_get(server.client):
        wait_until(lambda: outstanding(server.client) == 1)
        server.process.send_signal(signal.SIGTERM)
        server.process.wait()
    assert marks(launch(state_dir=tmp_path).client.batch()) == [0, 1, 2, 3]


def test_pipelined_requests_for_batches_are_all_settled(api: Client) -> None:
    api.register()
    fill(api, 12)
    request = b"GET /batch HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", api.port)) as connection:
        connection.sendall(request * 3)
        received = b""
        while received.count(b"lease_id") < 3:
            received += connection.recv(1 << 16)
        connection.sendall(b"GET /status HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: outstanding(api) == 0)
    assert lost(api) == 0


def test_on_a_connection_that_is_kept_the_next_request_tells_that_the_batch_arrived(api: Client) -> None:
    api.register()
    fill(api, 8)
    connection = http.client.HTTPConnection("127.0.0.1", api.port)
    for expected in ([0, 1, 2, 3], [4, 5, 6, 7]):
        connection.request("GET", "/batch")
        assert marks(json.loads(connection.getresponse().read())["batch"]) == expected
    wait_until(lambda: outstanding(api) == 1)
    connection.request("GET", "/status")
    connection.getresponse().read()
    wait_until(lambda: outstanding(api) == 0)
    connection.close()
    assert lost(api) == 0


def test_two_trainers_that_ask_at_once_get_different_batches(api: Client) -> None:
    api.register()
    fill(api, 8)
    waiting = [http.client.HTTPConnection("127.0.0.1", api.port) for _ in range(2)]
    for connection in waiting:
        connection.request("GET", "/batch")
    served = [marks(json.loads(connection.getresponse().read())["batch"]) for connection in waiting]
    assert sorted(served) == [[0, 1, 2, 3], [4, 5, 6, 7]]
    for connection in waiting:
        connection.close()


def test_a_leased_batch_waits_for_its_acknowledgement(api: Client) -> None:
    api.register()
    fill(api, 8)
    leased = api.get("/batch?lease_s=600")
    assert leased["redelivered"] == 0
    assert marks(api.batch("?lease_s=600")) == [4, 5, 6, 7], "consecutive batches, acknowledged or not"
    assert outstanding(api) == 2
    assert api.post("/batch/ack", {"lease_id": leased["lease_id"]}) == {"status": "success"}
    assert outstanding(api) == 1
    assert api.post("/batch/ack", {"lease_id": leased["lease_id"]}) == {"status": "success"}
    assert api.ask("GET", f"/batch?lease_id={leased['lease_id']}").status == 404
    assert api.ask("POST", "/batch/ack", {"lease_id": 10**6}).status == 404


def test_an_outstanding_batch_can_be_asked_for_again_by_its_lease(api: Client) -> None:
    api.register()
    fill(api, 4)
    leased = api.get("/batch?lease_s=600")
    again = api.get(f"/batch?lease_s=600&lease_id={leased['lease_id']}")
    assert again == {**leased, "redelivered": 1}
    assert api.get("/status")["current_step"] == 1


def test_a_lease_that_expires_puts_its_batch_back_at_the_head(api: Client) -> None:
    api.register()
    fill(api, 8)
    leased = api.get("/batch?lease_s=0.05")
    time.sleep(0.06)
    again = api.get("/batch")
    assert marks(again["batch"]) == marks(leased["batch"])
    assert (again["lease_id"], again["redelivered"], again["step"]) == (leased["lease_id"], 1, 1)


def test_a_renewed_lease_outlives_its_first_time_limit(api: Client) -> None:
    api.register()
    fill(api, 8)
    leased = api.get("/batch?lease_s=0.05")
    renewal = {"lease_ids": [leased["lease_id"], 99], "lease_s": 600}
    assert api.post("/batch/renew", renewal) == {"status": "success", "renewed": 1, "unknown": [99]}
    time.sleep(0.06)
    assert marks(api.batch("?lease_s=600")) == [4, 5, 6, 7]
    assert (outstanding(api), lost(api)) == (2, 0)


def test_renewing_a_lost_lease_gives_the_batch_back_to_its_trainer(api: Client) -> None:
    api.register()
    fill(api, 4)
    leased = api.get("/batch?lease_s=0.05")
    wait_until(lambda: lost(api) == 1)
    api.post("/batch/renew", {"lease_ids": [leased["lease_id"]], "lease_s": 600})
    assert (outstanding(api), lost(api)) == (1, 0)
    assert api.batch() is None


@pytest.mark.parametrize(
    ("renewal", "field"),
    [
        ({"lease_ids": [1], "lease_s": 0}, "lease_s"),
        ({"lease_ids": ["a"], "lease_s": 600}, "lease_ids"),
        ({"lease_ids": [1] * 10_001, "lease_s": 600}, "lease_ids"),
        ({"lease_s": 600}, "lease_ids"),
    ],
)
def test_a_senseless_renewal_is_refused(api: Client, renewal: dict[str, object], field: str) -> None:
    answer = api.ask("POST", "/batch/renew", renewal)
    assert answer.status == 422
    assert answer.json()["detail"][0]["loc"][:2] == ["body", field]


def test_a_lost_batch_is_not_supply_for_an_environment(api: Client) -> None:
    api.start()
    env_id = api.add_env()
    fill(api, 8, env_id=env_id)
    api.get("/batch?lease_s=0.05")
    wait_until(lambda: lost(api) == 1)
    status = api.status_env(env_id)
    assert (status["current_step"], status["queue_size"], status["self_queue_size"]) == (1, 4, 4)


def test_the_status_tells_how_long_a_trainer_has_waited_for_a_batch(api: Client) -> None:
    api.register()
    assert api.get("/status")["trainer"] == {"waiting_s": None}
    assert api.get("/batch")["envs_connected"] == 0
    first = api.get("/status")["trainer"]["waiting_s"]
    assert api.get("/batch") == {"batch": None, "reason": "no groups are queued", "envs_connected": 0}
    assert api.get("/status")["trainer"]["waiting_s"] > first
    api.add_env()
    assert api.get("/batch")["envs_connected"] == 1
    fill(api, 4)
    assert api.batch()
    assert api.get("/status")["trainer"] == {"waiting_s": None}


@pytest.mark.parametrize(
    "query", ["lease_s=0", "lease_s=x", "lease_s=nan", "lease_s=1e99", "lease_id=0", "lease_id=a"]
)
def test_a_senseless_lease_is_refused(api: Client, query: str) -> None:
    answer = api.ask("GET", f"/batch?{query}")
    assert answer.status == 422
    assert answer.json()["detail"][0]["loc"] == ["query", query.partition("=")[0]]


def test_a_post_repeated_with_its_key_is_taken_once(api: Client) -> None:
    api.register()
    assert api.post("/scored_data", group(mark=1), Idempotency_Key="a") == {"status": "received"}
    again = api.post("/scored_data", group(mark=1), Idempotency_Key="a")
    assert again == {"status": "received", "duplicate": True}
    assert api.post("/scored_data", group(mark=2), Idempotency_Key="b") == {"status": "received"}
    several = [group(mark=3), group(mark=4)]
    api.post("/scored_data_list", several, Idempotency_Key="c")
    assert api.post("/scored_data_list", several, Idempotency_Key="c")["groups_processed"] == 2
    assert api.get("/status")["queue_size"] == 4
    assert api.ask("POST", "/scored_data", group(), Idempotency_Key="x" * 201).status == 422


def test_a_silent_environment_counts_as_gone_until_it_is_heard_of_again(launch: Launch) -> None:
    api = launch("--env-timeout", "1.5").client
    api.start()
    lively, silent = api.add_env(weight=1.0), api.add_env(weight=3.0, min_batch_allocation=0.5)
    assert api.status_env(lively)["env_weight"] == 0.25
    wait_until(lambda: api.status_env(lively)["env_weight"] == 1.0)
    assert api.status_env(lively)["unallocated_fraction"] == 1.0
    for mark in range(4):
        api.post("/scored_data", group(mark=mark, env_id=lively))
    assert marks(api.batch()) == [0, 1, 2, 3], "the minimum of an environment that is gone is waived"
    assert api.status_env(silent)["env_weight"] == 0.75


def test_an_environment_that_said_goodbye_stays_gone(api: Client) -> None:
    api.start()
    leaving, staying = api.add_env(weight=3.0), api.add_env(weight=1.0)
    api.post("/disconnect-env", {"env_id": leaving})
    api.status_env(leaving)
    assert api.status_env(staying)["env_weight"] == 1.0
