"""What no client should send and no provider should do: the client's own form of an error, nothing lost."""

from __future__ import annotations

import gzip
import http.client
import json
import resource
import socket
import zlib
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

import pytest
import zstandard

from hermes.config.load import Config
from hermes.core import StepKind, StopReason
from hermes.gateway.coding import plain_body
from hermes.gateway.wire import Protocol
from tests.gateway.conftest import EVERYTHING, calls_on_disk, gateway, stored
from tests.gateway.requests import ROUTES, body_of, post
from tests.gateway.scripted import Reply, ScriptedProvider
from tests.waiting import wait_until

CHAT = frozenset({Protocol.CHAT})
BOMB_BYTES = 5 << 26
KINDS = {400: "invalid_request_error", 413: "request_too_large", 502: "api_error", 504: "api_error"}
MODES = pytest.mark.parametrize("speaks", [EVERYTHING, CHAT], ids=["passed-on", "translated"])


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with ScriptedProvider() as scripted:
        yield scripted


def check_form(protocol: str, status: int, reply: tuple[int, bytes, dict[str, str]]) -> None:
    """As the provider of this protocol words its errors."""
    assert reply[0] == status, reply
    content = json.loads(reply[1])
    assert content["error"]["message"]
    if protocol == "messages":
        assert content["type"] == "error" and content["error"]["type"] == KINDS[status]
    else:
        kind = "invalid_request_error" if status < 500 else "server_error"
        assert content["error"]["type"] == kind and {"param", "code"} <= content["error"].keys()


def deflated(window_bits: int) -> bytes:
    """A body of JSON that unpacks to 320 MiB."""
    packer = zlib.compressobj(1, zlib.DEFLATED, window_bits)
    block = b" " * (1 << 20)
    parts = [packer.compress(b'{"model": "model-1", "messages": []')]
    parts += [packer.compress(block) for _ in range(BOMB_BYTES >> 20)]
    return b"".join([*parts, packer.compress(b"}"), packer.flush()])


def zstandard_bomb() -> bytes:
    packer = zstandard.ZstdCompressor().compressobj()
    block = b" " * (1 << 20)
    return b"".join([*(packer.compress(block) for _ in range(BOMB_BYTES >> 20)), packer.flush()])


BOMBS: dict[str, Callable[[], bytes]] = {
    "gzip": lambda: deflated(31),
    "deflate": lambda: deflated(15),
    "zstd": zstandard_bomb,
}
PACKED: dict[str, Callable[[bytes], bytes]] = {
    "gzip": lambda data: gzip.compress(data[:20]) + gzip.compress(data[20:]),
    "deflate": zlib.compress,
    "zstd": zstandard.ZstdCompressor().compress,
}


@pytest.fixture(scope="module", params=BOMBS)
def bomb(request: pytest.FixtureRequest) -> tuple[str, bytes]:
    return request.param, BOMBS[request.param]()


def test_a_bomb_is_refused_without_being_unpacked(
    config: Config, provider: ScriptedProvider, bomb: tuple[str, bytes]
) -> None:
    coding, data = bomb
    assert len(data) < 2 << 20
    before_kb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for speaks in (EVERYTHING, CHAT):
        with gateway(config, provider.url, speaks) as recording:
            for protocol, route in ROUTES.items():
                reply = post(f"{recording.url}/v1/{route}", data, content_encoding=coding)
                check_form(protocol, 413, reply)
                assert b"unpacks to more than 67108864 bytes" in reply[1]
    assert provider.requests == []
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kb < (BOMB_BYTES >> 10) / 2


@MODES
@pytest.mark.parametrize("coding", PACKED)
def test_a_packed_body_is_read(
    config: Config, provider: ScriptedProvider, coding: str, speaks: frozenset[Protocol]
) -> None:
    with gateway(config, provider.url, speaks) as recording:
        for protocol, route in ROUTES.items():
            data = PACKED[coding](json.dumps(body_of(protocol)).encode())
            if speaks is CHAT and protocol != "chat":
                assert post(f"{recording.url}/v1/{route}", data, content_encoding=coding)[0] == 200
                continue
            post(f"{recording.url}/v1/{route}", data, content_encoding=coding)  # unpacking is the provider's
            assert provider.requests[-1].body == data
    assert {trajectory.messages[0].content for trajectory in stored(config)} == {"go 1"}


@MODES
@pytest.mark.parametrize("protocol", ROUTES)
def test_two_hundred_megabytes_are_refused_without_being_held(
    config: Config, provider: ScriptedProvider, protocol: str, speaks: frozenset[Protocol]
) -> None:
    with gateway(config, provider.url, speaks) as recording:
        parts = urlsplit(recording.url)
        connection = http.client.HTTPConnection(parts.netloc)
        block = b" " * (1 << 20)
        length = {"content-length": str(200 << 20)}
        connection.request("POST", f"{parts.path}/{ROUTES[protocol]}", (block for _ in range(200)), length)
        response = connection.getresponse()
        check_form(protocol, 413, (response.status, response.read(), {}))
    assert provider.requests == []


@MODES
@pytest.mark.parametrize("protocol", ROUTES)
@pytest.mark.parametrize("data", [b"{oops", b"[1]", b"", b"\xff\xfe", b"[" * 100_000])
def test_a_body_that_is_no_json_object(
    config: Config, provider: ScriptedProvider, protocol: str, data: bytes, speaks: frozenset[Protocol]
) -> None:
    """Passed on it is the provider's to refuse; translated it is refused here."""
    with gateway(config, provider.url, speaks) as recording:
        reply = post(f"{recording.url}/v1/{ROUTES[protocol]}", data)
        if speaks is CHAT and protocol != "chat":
            check_form(protocol, 400, reply)
            assert provider.requests == []
        else:
            assert provider.requests[-1].body == data
        assert post(f"{recording.url}/v1/{ROUTES[protocol]}", body_of(protocol))[0] == 200
    assert stored(config)[-1].answer == "answer 1"


@MODES
@pytest.mark.parametrize("protocol", ROUTES)
def test_a_provider_that_never_answers_or_is_not_there(
    config: Config, provider: ScriptedProvider, protocol: str, speaks: frozenset[Protocol]
) -> None:
    provider.script = lambda body: Reply(silent=True)
    with gateway(config, provider.url, speaks, timeout_s=0.3) as recording:
        for stream in (False, True):
            reply = post(f"{recording.url}/{ROUTES[protocol]}", body_of(protocol, stream=stream))
            check_form(protocol, 504, reply)
    with gateway(config, "http://127.0.0.1:9", speaks) as recording:
        check_form(protocol, 502, post(f"{recording.url}/{ROUTES[protocol]}", body_of(protocol)))
    outcomes = [trajectory.outcome for trajectory in stored(config)]
    assert outcomes and {outcome.error_type for outcome in outcomes if outcome} == {"no response"}


@MODES
@pytest.mark.parametrize("path", ["v1/some/new?x=1", "some/new", "v1/v1/batches", "v1beta/models/x:y"])
def test_unknown_routes_are_the_providers(
    config: Config, provider: ScriptedProvider, path: str, speaks: frozenset[Protocol]
) -> None:
    with gateway(config, provider.url, speaks) as recording:
        status, data, _ = post(f"{recording.url}/{path}", {"a": 1})
    assert status == 200 and json.loads(data)["got"] == {"a": 1}
    assert json.loads(data)["path"] == f"/{path.replace('v1/v1', 'v1')}"


@MODES
@pytest.mark.parametrize("protocol", ROUTES)
def test_a_client_that_reads_nothing_is_given_up(
    config: Config, provider: ScriptedProvider, protocol: str, speaks: frozenset[Protocol]
) -> None:
    provider.script = lambda body: Reply(f"{'w' * 4000} " * 1500)
    with gateway(config, provider.url, speaks, timeout_s=1) as recording:
        parts = urlsplit(recording.url)
        data = json.dumps(body_of(protocol, stream=True)).encode()
        client = socket.create_connection((parts.hostname, parts.port))
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        head = f"POST {parts.path}/{ROUTES[protocol]} HTTP/1.1\r\nhost: {parts.netloc}\r\n"
        client.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
        wait_until(lambda: calls_on_disk(config))
        client.close()
    (trajectory,) = stored(config)
    assert trajectory.outcome is not None and trajectory.outcome.stop_reason is StopReason.CANCELLED
    assert trajectory.steps[-1].kind is StepKind.MODEL


def test_members_without_content_do_not_hold_the_gateway_up() -> None:
    """Each of them costs a decoder: several are read, millions are not."""
    empty, last = gzip.compress(b""), gzip.compress(b"{}")
    assert plain_body(empty * 100 + last, "gzip", 1 << 20) == b"{}"
    assert plain_body(empty * 200_000 + last, "gzip", 1 << 20) == b""
