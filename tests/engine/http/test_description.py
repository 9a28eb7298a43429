"""The engine describes its requests, and requests made from the description are never a server error."""

from __future__ import annotations

import contextlib

import httpx
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable

from hermes.engine.server.openai import routes as openai
from hermes.engine.server.tinker import routes as tinker
from tests.engine.http.engine_process import KEY, Server

HEADERS = {"X-Api-Key": KEY}
DESCRIBED = sum(operation.include_in_schema for operation in (*openai.OPERATIONS, *tinker.OPERATIONS))
LONG_POLLS = frozenset({"/api/v1/retrieve_future"})
"""They answer after a patience of their own."""
BINARY = {
    "/api/v1/forward_backward": "application/x-protobuf",
    "/api/v1/import_adapter": "application/x-tar",
}


def test_the_engine_describes_its_requests(shared: Server) -> None:
    with httpx.Client(base_url=shared.url, headers=HEADERS) as client:
        document = client.get("/openapi.json").json()
        assert document["paths"].keys() >= {
            "/v1/chat/completions",
            "/generate",
            "/api/v1/asample",
            "/api/v1/forward_backward",
            "/api/v1/training_runs/{run}/checkpoints/{kind}/{name}/ttl",
        }
        numbered = document["paths"]["/api/v1/optim_step"]["post"]["requestBody"]["content"]
        assert [
            part["$ref"].rpartition("/")[2] for part in numbered["application/json"]["schema"]["allOf"]
        ] == [
            "OptimStep",
            "NumberedBody",
        ]
        identifiers = [entry["operationId"] for path in document["paths"].values() for entry in path.values()]
        assert len(identifiers) == len(set(identifiers)) == DESCRIBED
        page = client.get("/docs")
        assert "text/html" in page.headers["content-type"]
        assert "/api/v1/asample" in page.text and "http://" not in page.text


def test_every_described_request_has_a_route(shared: Server) -> None:
    with httpx.Client(base_url=shared.url, headers=HEADERS, timeout=60) as client:
        paths = client.get("/openapi.json").json()["paths"]
        for path, methods in paths.items():
            for method in methods:
                url = path.replace("{kind}", "weights").replace("{", "").replace("}", "")
                body = b"{" if method in ("post", "put") else None
                response = client.request(method, url, content=body)
                assert response.status_code < 500, (method, path, response.text)
                assert "Not Found" not in response.text and response.status_code != 405, (method, path)


QUICK = settings(deadline=None, max_examples=25, suppress_health_check=list(HealthCheck), database=None)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_requests_made_from_the_description_are_never_a_server_error(shared: Server) -> None:
    schemathesis = pytest.importorskip("schemathesis")
    schema = schemathesis.openapi.from_url(f"{shared.url}/openapi.json", headers=HEADERS)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) == DESCRIBED
    for operation in operations:
        if operation.path in LONG_POLLS | BINARY.keys():
            continue
        for mode in schemathesis.GenerationMode:

            @QUICK
            @given(case=operation.as_strategy(generation_mode=mode))
            def answered(case: object) -> None:
                response = case.call(headers=HEADERS)  # type: ignore[attr-defined]
                assert response.status_code < 500, response.text

            with contextlib.suppress(Unsatisfiable):  # a path without parameters has no wrong ones
                answered()
    with httpx.Client(base_url=shared.url, headers=HEADERS) as client:

        @QUICK
        @given(path=st.sampled_from(sorted(BINARY)), content=st.binary(max_size=200))
        def received(path: str, content: bytes) -> None:
            response = client.post(path, content=content, headers={"Content-Type": BINARY[path]})
            assert response.status_code < 500, response.text

        received()
        assert client.get("/health").status_code == 200
