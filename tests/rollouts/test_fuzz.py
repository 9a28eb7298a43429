"""No request makes the server fail: none is answered 5xx, and it works as before afterwards."""

from __future__ import annotations

import contextlib
import json
import socket
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from tests.rollouts.conftest import Client, Launch, group, marks

QUICK = settings(
    max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)
PATHS = (
    "/",
    "/register",
    "/register-env",
    "/batch",
    "/batch/ack",
    "/scored_data",
    "/status-env",
    "/docs",
    "/x",
)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["tokens", "masks", "scores", "env_id", "x"]), inner, max_size=4)
    ),
    max_leaves=8,
)


@pytest.fixture
def running(api: Client) -> Iterator[Client]:
    """A server with a run and an environment, that must still serve when the test is over."""
    api.start()
    api.add_env()
    yield api
    api.reset()
    api.register()
    for mark in range(4):
        api.post("/scored_data", group(mark=mark))
    assert marks(api.batch()) == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_requests_made_from_the_description_are_never_a_server_error(running: Client) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    schema = schemathesis.openapi.from_url(f"http://127.0.0.1:{running.port}/openapi.json")
    operations = [found.ok() for found in schema.get_all_operations()]
    assert len(operations) >= 15
    for operation in operations:
        for mode in schemathesis.GenerationMode:

            @settings(QUICK, max_examples=200)
            @given(case=operation.as_strategy(generation_mode=mode))
            def answered(case: object) -> None:
                response = case.call()  # type: ignore[attr-defined]
                assert response.status_code < 500, response.text

            with contextlib.suppress(Unsatisfiable):  # a path without parameters has no wrong ones
                answered()


@QUICK
@given(method=st.sampled_from(["GET", "POST"]), path=st.sampled_from(PATHS), body=JSON)
def test_any_json_on_any_path_is_never_a_server_error(
    shared: Client, method: str, path: str, body: object
) -> None:
    assert shared.ask(method, path, body).status < 500


@QUICK
@given(
    path=st.sampled_from(["/scored_data", "/scored_data_list", "/register"]),
    raw=st.binary(max_size=60),
    encoding=st.sampled_from(["", "gzip", "deflate", "\xff"]),
    kind=st.sampled_from(["application/json", "", "text/plain", "application/x+json"]),
    key=st.text(st.characters(min_codepoint=33, max_codepoint=255, exclude_characters="\x7f"), max_size=5),
)
def test_any_bytes_under_any_headers_are_never_a_server_error(
    shared: Client, path: str, raw: bytes, encoding: str, kind: str, key: str
) -> None:
    headers = {"Content_Encoding": encoding, "Content_Type": kind, "Idempotency_Key": key}
    assert shared.ask("POST", path, raw=raw, **headers).status < 500


def test_a_connection_that_speaks_no_http_is_closed_and_harms_nobody(running: Client) -> None:
    body = json.dumps(group()).encode()
    kind = b"Host: localhost\r\nContent-Type: application/json\r\n"
    half = b"POST /scored_data HTTP/1.1\r\n" + kind + b"Content-Length: 9999\r\n\r\n"
    for raw in (
        b"\x00\xff" * 50,
        b"GET / HTTP/9.9\r\n\r\n",
        half + body,
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz",
    ):
        with socket.create_connection(("127.0.0.1", running.port)) as connection:
            connection.sendall(raw)
    assert running.get("/status")["queue_size"] == 0


def test_a_server_that_keeps_its_state_is_fuzzed_and_comes_back(
    launch: Launch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    directory = tmp_path_factory.mktemp("state")
    server = launch(state_dir=directory)
    server.client.start()
    server.client.add_env()

    @QUICK
    @given(
        path=st.sampled_from(["/scored_data", "/scored_data_list", "/register-env", "/disconnect-env"]),
        body=JSON,
    )
    def answered(path: str, body: object) -> None:
        assert server.client.ask("POST", path, body).status < 500

    answered()
    before = server.client.get("/status")
    server.kill()
    after = launch(state_dir=directory).client.get("/status")
    assert after["queue"]["groups"] == before["queue"]["groups"]
    assert len(after["envs"]) == len(before["envs"])
