"""Calls pass unchanged, and are recorded as what they were."""

from __future__ import annotations

import http.client
import json
import socket
import threading
import urllib.request
from collections.abc import Iterator
from urllib.parse import urlsplit

import pytest

from hermes.config.load import Config, load
from hermes.core import StopReason
from hermes.core.model_call import INTERRUPTED
from hermes.gateway.journal import Recording
from hermes.gateway.wire import Protocol
from tests.gateway.conftest import EVERYTHING, calls_on_disk, gateway, stored
from tests.gateway.requests import KEY, ROUTES, body_of, post
from tests.gateway.scripted import Call, Reply, ScriptedProvider
from tests.waiting import wait_until


@pytest.fixture
def provider() -> Iterator[ScriptedProvider]:
    with ScriptedProvider() as scripted:
        yield scripted


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("protocol", ROUTES)
def test_bytes_and_headers_pass_unchanged(
    config: Config, provider: ScriptedProvider, protocol: str, stream: bool
) -> None:
    sent = json.dumps(body_of(protocol, stream=stream, a_new_field={"b": 1}), indent=3).encode()
    provider.script = lambda body: Reply("Hello  there", "Hm.", (Call("bash", '{"command":  "ls"}'),))
    with gateway(config, provider.url) as recording:
        for prefix in ("", "/v1", "/v1/v1"):
            status, received, headers = post(
                f"{recording.url}{prefix}/{ROUTES[protocol]}?beta=true",
                sent,
                authorization=f"Bearer {KEY}",
                anthropic_beta="a-2025,b-2026",
                x_new="7",
            )
            assert status == 200
            assert received == provider.responses[-1]
            asked = provider.requests[-1]
            assert asked.body == sent
            assert asked.path == f"/v1/{ROUTES[protocol]}?beta=true"
            assert asked.headers["authorization"] == f"Bearer {KEY}"
            assert asked.headers["anthropic-beta"] == "a-2025,b-2026"
            assert asked.headers["x-new"] == "7"
            assert stream or headers["x-provider"] == "scripted"
    for trajectory in stored(config):
        question, answer = trajectory.steps
        assert question.message.content == "go 1"
        assert answer.message.content == "Hello  there"
        assert answer.message.reasoning == "Hm."
        (call,) = answer.message.tool_calls
        assert call.name == "bash" and call.parsed() == {"command": "ls"}
        assert answer.call is not None and answer.call.usage.prompt == 100
        assert answer.call.usage.output_tokens == 7 and answer.call.model == "scripted/model-1"
    assert len(stored(config)) == 3
    for path in config.home.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes()


def test_the_clients_key_is_not_stored_where_a_tool_prints_it(
    config: Config, provider: ScriptedProvider
) -> None:
    body = body_of("chat", f"my key is {KEY} 1")
    with gateway(config, provider.url) as recording:
        post(f"{recording.url}/v1/chat/completions", body, authorization=f"Bearer {KEY}")
        for path in config.home.rglob("*.jsonl"):
            (call,) = [call for _, call in Recording(path).calls()]
            assert KEY.encode() not in call.request and b"[REDACTED:CLIENT_KEY]" in call.request
    (trajectory,) = stored(config)
    assert "[REDACTED:CLIENT_KEY]" in trajectory.messages[0].content


@pytest.mark.parametrize("key", ["x", "-", "local", "dummy", "not-needed"])
def test_a_word_that_stands_for_a_key_is_no_secret(
    config: Config, provider: ScriptedProvider, key: str
) -> None:
    """Agents of a local server send one, as their settings ask for a key; the text is kept as it is."""
    text = f"an example: use the {key} file, please"
    with gateway(config, provider.url) as recording:
        url = f"{recording.url}/v1/chat/completions"
        assert post(url, body_of("chat", text), authorization=f"Bearer {key}")[0] == 200
    (trajectory,) = stored(config)
    assert text in trajectory.messages[0].content


def test_secrets_of_the_configuration_are_not_stored(
    config: Config, provider: ScriptedProvider, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever they stand: a tool printed one, and the model repeats it."""
    secret = "sk-configured-abcdef0123456789"
    monkeypatch.setenv("OPENROUTER_API_KEY", secret)
    provider.script = lambda body: Reply(f"It is {secret}.", calls=(Call("bash", f'{{"a": "{secret}"}}'),))
    with gateway(load(), provider.url) as recording:
        for protocol in ROUTES:
            body = body_of(protocol, f"the variable is {secret} 1")
            assert secret.encode() in post(f"{recording.url}/{ROUTES[protocol]}", body)[1]
        for path in config.home.rglob("*"):
            assert not path.is_file() or secret.encode() not in path.read_bytes()
    assert len(stored(config)) == 3
    for path in config.home.rglob("*"):
        assert not path.is_file() or secret.encode() not in path.read_bytes()


def test_unknown_routes_and_models_are_forwarded(config: Config, provider: ScriptedProvider) -> None:
    with gateway(config, provider.url) as recording:
        assert json.loads(post(f"{recording.url}/v1/some/new?x=1", {"a": 1})[1])["path"] == "/v1/some/new?x=1"
        assert json.loads(post(f"{recording.url}/some/new", {"a": 1})[1])["path"] == "/some/new"
        with urllib.request.urlopen(f"{recording.url}/v1/models") as response:
            assert json.load(response)["data"][0]["id"] == "model-1"
        assert post(f"{recording.url}/v1/messages/count_tokens", {"messages": []})[0] == 200
        head = urllib.request.Request(recording.url, method="HEAD")
        with urllib.request.urlopen(head) as response:
            assert response.status == 200
    assert not (config.home / "hermes.db").exists() or stored(config) == []


def test_compressed_answers_pass_compressed_and_are_read(config: Config, provider: ScriptedProvider) -> None:
    provider.script = lambda body: Reply("short", compressed=True)
    with gateway(config, provider.url) as recording:
        url = f"{recording.url}/v1/chat/completions"
        _, data, headers = post(url, body_of("chat"), accept_encoding="gzip, br")
        assert data == provider.responses[-1] and headers["content-encoding"] == "gzip"
        assert provider.requests[-1].headers["accept-encoding"] == "gzip"
    assert stored(config)[0].answer == "short"


@pytest.mark.parametrize("protocol", ROUTES)
def test_errors_are_recorded_as_attempts_of_the_answer(
    config: Config, provider: ScriptedProvider, protocol: str
) -> None:
    statuses = [529, 429, 200, 503]
    provider.script = lambda body: Reply("fine", status=statuses.pop(0))
    with gateway(config, provider.url) as recording:
        url = f"{recording.url}/v1/{ROUTES[protocol]}"
        assert [post(url, body_of(protocol))[0] for _ in range(3)] == [529, 429, 200]
        assert post(url, body_of(protocol, "another 2"))[0] == 503
    answered, refused = stored(config)
    assert answered.steps[-1].call is not None and answered.steps[-1].call.attempts == 3
    assert answered.outcome is not None and answered.outcome.stop_reason is StopReason.COMPLETED
    assert refused.outcome is not None and refused.outcome.error_type == "503"
    assert refused.outcome.infrastructure and refused.turns == 0


@pytest.mark.parametrize("protocol", ROUTES)
def test_a_stream_that_is_cut_is_recorded_as_far_as_it_came(
    config: Config, provider: ScriptedProvider, protocol: str
) -> None:
    cuts = [{"chat": 3, "messages": 4, "responses": 5}[protocol], None]
    provider.script = lambda body: Reply("one two three", cut_after=cuts.pop(0))
    with gateway(config, provider.url) as recording:
        url = f"{recording.url}/v1/{ROUTES[protocol]}"
        with pytest.raises(http.client.IncompleteRead):
            post(url, body_of(protocol, stream=True))
        assert post(url, body_of(protocol, stream=True))[0] == 200
    cut, whole = stored(config)
    assert cut.steps[-1].message.content == "one two "
    assert cut.steps[-1].call is not None and cut.steps[-1].call.finish_reason == INTERRUPTED
    assert cut.outcome is not None and cut.outcome.error_type == "cut"
    assert whole.answer == "one two three" and whole.header.parent_id == cut.header.id


def test_a_client_that_hangs_up_ends_the_call(config: Config, provider: ScriptedProvider) -> None:
    gate = threading.Event()
    provider.script = lambda body: Reply("one two three", gate=gate)
    with gateway(config, provider.url) as recording:
        parts = urlsplit(recording.url)
        data = json.dumps(body_of("chat", stream=True)).encode()
        with socket.create_connection((parts.hostname, parts.port)) as client:
            head = f"POST {parts.path}/v1/chat/completions HTTP/1.1\r\nhost: {parts.netloc}\r\n"
            client.sendall(f"{head}content-length: {len(data)}\r\n\r\n".encode() + data)
            client.recv(10)
        wait_until(lambda: calls_on_disk(config))
        gate.set()
    (trajectory,) = stored(config)
    assert trajectory.outcome is not None and trajectory.outcome.stop_reason is StopReason.CANCELLED


@pytest.mark.parametrize("speaks", [EVERYTHING, frozenset({Protocol.CHAT})], ids=["passed-on", "translated"])
def test_the_call_is_on_disk_before_the_client_has_its_end(
    config: Config, provider: ScriptedProvider, speaks: frozenset[Protocol]
) -> None:
    with gateway(config, provider.url, speaks) as recording:
        for protocol, route in ROUTES.items():
            for stream in (False, True):
                before = calls_on_disk(config)
                post(f"{recording.url}/{route}", body_of(protocol, stream=stream))
                assert calls_on_disk(config) == before + 1
