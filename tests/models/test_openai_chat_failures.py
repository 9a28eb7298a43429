"""What a server can do wrong, and what a call makes of it: a retry, or an error of the right type."""

from __future__ import annotations

import asyncio
import random
import socket
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread
from typing import Any

import pytest

from hermes.errors import AuthError, ContextOverflowError, ProviderError
from hermes.models.base import OnDelta, StreamDelta
from hermes.models.remote.openai_chat import OpenAIChat
from hermes.models.remote.throttle import throttle_for
from tests.fakes.provider import (
    FakeProvider,
    Reply,
    bad_json,
    cut_stream,
    delayed,
    hang,
    raw,
    status,
    text,
)
from tests.models.clients import asking, both_ways, chat_on, failing, ignore, target_for
from tests.ports import free_port
from tests.waiting import await_until


@pytest.mark.parametrize("code", [408, 500])
@both_ways
async def test_a_passing_failure_is_retried_and_the_attempts_are_counted(
    code: int, on_delta: OnDelta | None
) -> None:
    with FakeProvider([status(code), text("hi")]) as provider:
        got = await chat_on(provider).complete(asking(), on_delta)
    assert got.message.content == "hi"
    assert got.call.attempts == 2
    assert len(provider.requests) == 2


async def test_when_the_retries_are_used_up_the_last_failure_is_reported() -> None:
    with FakeProvider(lambda body: status(500, message="still broken")) as provider:
        error = await failing(chat_on(provider, max_retries=2))
    assert error.retryable and error.status == 500
    assert "still broken" in error.message and provider.base_url in error.message
    assert len(provider.requests) == 3


@pytest.mark.parametrize("chunks", [0, 3])
@pytest.mark.parametrize("cleanly", [False, True], ids=["broken", "ended early"])
async def test_a_cut_stream_is_retried_and_its_deltas_start_anew(chunks: int, cleanly: bool) -> None:
    seen: list[StreamDelta] = []
    with FakeProvider([cut_stream(chunks, cleanly=cleanly), text("whole answer")]) as provider:
        got = await chat_on(provider).complete(asking(), seen.append)
    assert got.message.content == "whole answer"
    assert got.call.attempts == 2
    assert "".join(delta.text for delta in seen).endswith("whole answer")


@pytest.mark.parametrize("cleanly", [False, True], ids=["broken", "ended early"])
async def test_a_stream_that_is_always_cut_is_reported_as_retryable(cleanly: bool) -> None:
    with FakeProvider(lambda body: cut_stream(2, cleanly=cleanly)) as provider:
        error = await failing(chat_on(provider, max_retries=1), ignore)
    assert error.retryable and provider.base_url in error.message
    assert len(provider.requests) == 2


async def test_a_body_cut_midway_is_retried() -> None:
    with FakeProvider([cut_stream(0), text("hi")]) as provider:
        assert (await chat_on(provider).complete(asking())).call.attempts == 2


@both_ways
async def test_bad_json_is_retried(on_delta: OnDelta | None) -> None:
    body = bad_json() if on_delta is None else bad_json('data: {"choices": [\n\n', "text/event-stream")
    with FakeProvider([body, text("hi")]) as provider:
        assert (await chat_on(provider).complete(asking(), on_delta)).call.attempts == 2


@pytest.mark.parametrize(
    "body",
    ["[]", "null", '"text"', "{}", '{"choices": []}', '{"choices": [7]}', '{"choices":' + "[" * 50_000],
    ids=["list", "null", "text", "empty", "no choice", "number", "deep"],
)
@both_ways
async def test_json_of_another_shape_is_a_typed_error(body: str, on_delta: OnDelta | None) -> None:
    with FakeProvider([bad_json(body)]) as provider:
        assert (await failing(chat_on(provider, max_retries=0), on_delta)).retryable


async def test_a_body_cut_midway_while_streaming_was_asked_for_is_retried() -> None:
    with FakeProvider([replace(bad_json('{"choices": []}' * 10), cut_after=0), text("hi")]) as provider:
        assert (await chat_on(provider).complete(asking(), ignore)).call.attempts == 2


@both_ways
async def test_a_web_page_means_the_address_is_wrong(on_delta: OnDelta | None) -> None:
    with FakeProvider([bad_json("<html>welcome</html>", "text/html")]) as provider:
        error = await failing(chat_on(provider), on_delta)
    assert "a web page" in error.message and "/v1" in error.hint
    assert len(provider.requests) == 1


async def test_a_failure_reported_inside_a_success_is_a_failure() -> None:
    broken = {"error": {"code": 502, "message": "upstream died"}}
    with FakeProvider([raw(broken), text("hi")]) as provider:
        assert (await chat_on(provider).complete(asking())).call.attempts == 2
    choice = {"finish_reason": "error", "error": {"code": 402, "message": "no money"}, "message": {}}
    with FakeProvider([raw({"choices": [choice]})]) as provider:
        error = await failing(chat_on(provider))
    assert error.status == 402 and "no money" in error.message


async def test_a_failure_in_the_middle_of_a_stream_is_typed() -> None:
    events = 'data: {"error": {"code": 429, "message": "slow down"}}\n\n'
    with FakeProvider([bad_json(events, "text/event-stream"), text("hi")]) as provider:
        assert (await chat_on(provider).complete(asking(), ignore)).call.attempts == 2
    events = 'data: {"error": {"message": "maximum context length is 9", "code": "too_long"}}\n\n'
    with FakeProvider([bad_json(events, "text/event-stream")]) as provider:
        assert isinstance(await failing(chat_on(provider), ignore), ContextOverflowError)
    events = 'data: {"error": {"message": "it broke"}}\n\n'
    with FakeProvider([bad_json(events, "text/event-stream")]) as provider:
        error = await failing(chat_on(provider, max_retries=0), ignore)
    assert error.retryable and "it broke" in error.message


@both_ways
async def test_a_refused_key_is_not_retried_and_its_variable_is_named(on_delta: OnDelta | None) -> None:
    with FakeProvider([text("hi")], api_key="right") as provider:
        error = await failing(chat_on(provider, key="wrong"), on_delta)
    assert isinstance(error, AuthError)
    assert "FAKE_API_KEY" in error.hint
    assert "wrong" not in error.message + error.hint
    assert len(provider.requests) == 1


def test_a_key_that_cannot_be_a_key_is_refused_before_it_is_sent() -> None:
    with pytest.raises(AuthError, match="FAKE_API_KEY"):
        OpenAIChat(target_for("http://127.0.0.1:9/v1", key="sk-“quoted”"))


async def test_a_full_context_is_its_own_error() -> None:
    reply = status(400, message="maximum context length is 10", error_code="context_length_exceeded")
    with FakeProvider([reply]) as provider:
        assert isinstance(await failing(chat_on(provider)), ContextOverflowError)
    assert len(provider.requests) == 1


async def test_an_unknown_model_is_answered_with_the_models_there_are() -> None:
    models = ("llama-3-8b", "qwen3-8b", "mistral-7b")
    with FakeProvider([status(404, message="no such model")], models=models) as provider:
        error = await failing(chat_on(provider, model="qwen3-8"))
    assert not error.retryable
    assert "qwen3-8b" in error.hint and "'qwen3-8'" in error.hint


async def test_a_wrong_path_is_answered_with_a_hint_about_the_address() -> None:
    with FakeProvider([]) as provider:
        error = await failing(OpenAIChat(target_for(provider.base_url.removesuffix("/v1"))))
    assert error.status == 404
    assert "base_url" in error.hint and "/v1" in error.hint


async def test_a_redirect_is_not_followed_and_its_target_is_named() -> None:
    with FakeProvider([text("stolen")]) as other:
        moved = status(307, headers={"location": f"{other.base_url}/chat/completions"})
        with FakeProvider([moved]) as provider:
            error = await failing(chat_on(provider, key="sk-secret"))
        assert other.base_url in error.message
        assert other.requests == []


@both_ways
async def test_no_server_running_is_said_so(on_delta: OnDelta | None) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/v1"
        error = await failing(OpenAIChat(target_for(url, max_retries=1)), on_delta)
    assert error.message == f"connection refused at {url}: is the server running?"
    assert error.retryable


async def test_a_server_that_starts_late_is_found_by_a_retry() -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    answer = asyncio.create_task(OpenAIChat(target_for(url)).complete(asking()))
    throttle = throttle_for(url, 100)
    async with asyncio.timeout(60):  # the first attempt begins, and ends in vain
        while not throttle.in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0)
        while throttle.in_flight:  # noqa: ASYNC110
            await asyncio.sleep(0)
    with FakeProvider(lambda body: text("hi"), port=port):
        got = await answer
    assert got.message.content == "hi"
    assert got.call.attempts > 1


async def test_a_host_that_does_not_exist_is_named() -> None:
    error = await failing(OpenAIChat(target_for("http://no-such-host.invalid/v1", max_retries=0)))
    assert "no-such-host.invalid" in error.message and "cannot be resolved" in error.message


class Plain(BaseHTTPRequestHandler):
    def log_message(self, *args: Any) -> None: ...


async def test_https_to_a_plain_http_server_says_so_and_is_not_retried() -> None:
    server = HTTPServer(("127.0.0.1", 0), Plain)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        error = await failing(OpenAIChat(target_for(f"https://127.0.0.1:{server.server_port}/v1")))
    finally:
        server.shutdown()
        server.server_close()
    assert not error.retryable
    assert "http://" in error.hint


@both_ways
async def test_cancelling_a_call_frees_its_slot(on_delta: OnDelta | None) -> None:
    with FakeProvider([hang(60), text("hi")]) as provider:
        chat = chat_on(provider, max_concurrency=1)
        call = asyncio.create_task(chat.complete(asking(), on_delta))
        await await_until(lambda: provider.requests)
        assert throttle_for(provider.base_url, 1).in_flight == 1
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert throttle_for(provider.base_url, 1).in_flight == 0
        assert (await chat.complete(asking())).message.content == "hi"


async def test_a_listener_that_fails_is_not_mistaken_for_the_server() -> None:
    def broken(delta: StreamDelta) -> None:
        raise RuntimeError("the screen is gone")

    with FakeProvider([text("hi")]) as provider:
        with pytest.raises(RuntimeError, match="the screen is gone"):
            await chat_on(provider).complete(asking(), broken)
        assert throttle_for(provider.base_url, 100).in_flight == 0


@pytest.mark.slow
async def test_200_callers_settle_under_a_servers_capacity_and_all_are_answered() -> None:
    capacity = 40

    def answer(body: dict[str, Any]) -> Reply:
        return delayed(0.3, text("hi")) if provider.in_flight <= capacity else status(429)

    with FakeProvider(answer) as provider:
        chat = chat_on(provider, max_concurrency=100)

        async def caller() -> int:
            return sum([(await chat.complete(asking())).call.attempts for _ in range(4)])

        attempts = sum(await asyncio.gather(*(caller() for _ in range(200))))
        limit = throttle_for(provider.base_url, 100).limit
        await chat.close()
    assert attempts == len(provider.requests)
    assert attempts <= 800 * 1.2
    assert capacity * 0.6 <= limit <= capacity + 5
    assert provider.max_in_flight <= capacity * 2  # the first, doubling approach overshoots once


async def test_a_hostile_server_leaves_every_call_typed_and_every_slot_free() -> None:
    rng = random.Random(5)
    faults = [status(429, retry_after=0.01), status(503), cut_stream(2), bad_json(), hang(60)]

    def answer(body: dict[str, Any]) -> Reply:
        return rng.choice(faults) if rng.random() < 0.3 else text("hi")

    with FakeProvider(answer) as provider:
        chat = chat_on(provider, timeout_s=2.0)
        calls = (chat.complete(asking(), ignore if n % 2 else None) for n in range(100))
        results = await asyncio.gather(*calls, return_exceptions=True)
        throttle = throttle_for(provider.base_url, 100)
        assert (throttle.in_flight, throttle.waiting) == (0, 0)
        await chat.close()
    failures = [result for result in results if isinstance(result, BaseException)]
    assert all(isinstance(failure, ProviderError) for failure in failures)
    assert len(failures) < 40
