"""How long a call may wait: for its turn, for a Retry-After, for a server that hangs."""

from __future__ import annotations

import asyncio
import time
from email.utils import formatdate
from typing import Any

import pytest

from hermes.core import Message
from hermes.models.base import ChatRequest, OnDelta
from hermes.models.remote.throttle import throttle_for
from tests.fakes.provider import (
    FakeProvider,
    Reply,
    delayed,
    hang,
    slow,
    status,
    text,
)
from tests.models.clients import asking, both_ways, chat_on, failing, ignore
from tests.waiting import await_until


@pytest.mark.parametrize("form", ["seconds", "milliseconds", "date"])
async def test_no_request_comes_before_the_time_a_429_asked_for(form: str) -> None:
    wait_s = 0.6
    asked_until: list[float] = []

    def answer(body: dict[str, Any]) -> Reply:
        if asked_until:
            return text("hi")
        if form == "date":  # whole seconds, so the time asked for is the next one but one
            at_s = int(time.time()) + 2
            asked_until.append(time.monotonic() + at_s - time.time())
            return status(429, retry_after=formatdate(at_s, usegmt=True))
        asked_until.append(time.monotonic() + wait_s)
        headers = {"retry-after-ms": str(wait_s * 1000)} if form == "milliseconds" else {}
        return status(429, retry_after=None if headers else wait_s, headers=headers)

    with FakeProvider(answer) as provider:
        got = await chat_on(provider).complete(asking())
    assert got.call.attempts == 2
    assert provider.requests[1].arrived_s >= asked_until[0] - 0.005


async def test_a_429_holds_back_every_caller_of_the_endpoint() -> None:
    wait_s = 0.4
    told_at: list[float] = []

    def answer(body: dict[str, Any]) -> Reply:
        if not told_at:
            told_at.append(time.monotonic())
            return status(429, retry_after=wait_s)
        return text("hi")

    with FakeProvider(answer) as provider:
        first = asyncio.create_task(chat_on(provider).complete(asking()))
        throttle = throttle_for(provider.base_url, 100)
        await await_until(lambda: throttle.gate_left_s)
        others = [chat_on(provider).complete(asking()) for _ in range(5)]
        await asyncio.gather(first, *others)
    assert len(provider.requests) == 7
    assert min(request.arrived_s for request in provider.requests[1:]) >= told_at[0] + wait_s


async def test_a_retry_after_beyond_the_deadline_is_reported_at_once() -> None:
    with FakeProvider([status(429, retry_after=3600)]) as provider:
        error = await failing(chat_on(provider), timeout_s=30)
        assert error.status == 429 and error.retry_after_s == 3600
        later = await failing(chat_on(provider), timeout_s=30)
        assert "no call for another" in later.message
        assert len(provider.requests) == 1


@both_ways
async def test_a_hang_ends_in_a_retryable_error_at_the_deadline(on_delta: OnDelta | None) -> None:
    with FakeProvider([hang(60)]) as provider:
        error = await failing(chat_on(provider), on_delta, timeout_s=0.3)
        assert error.retryable
        assert f"{provider.base_url} gave no answer within 0.3 s" in error.message
        assert throttle_for(provider.base_url, 100).in_flight == 0


async def test_the_providers_own_time_limit_holds_when_the_request_names_none() -> None:
    with FakeProvider([hang(60)]) as provider:
        assert "within 0.2 s" in (await failing(chat_on(provider, timeout_s=0.2))).message


async def test_time_spent_in_the_queue_is_not_held_against_the_provider() -> None:
    with FakeProvider(lambda body: delayed(0.3, text("hi"))) as provider:
        chat = chat_on(provider, max_concurrency=1, timeout_s=1.4)
        replies = await asyncio.gather(*(chat.complete(asking()) for _ in range(5)))
    assert [reply.call.attempts for reply in replies] == [1] * 5


async def test_nor_is_the_time_that_a_second_attempt_waits_for_its_turn() -> None:
    refused: set[str] = set()

    def busy_once(body: dict[str, Any]) -> Reply:
        prompt = body["messages"][-1]["content"]
        if prompt not in refused:
            refused.add(prompt)
            return status(503)
        return delayed(0.2, text("hi"))

    with FakeProvider(busy_once) as provider:
        chat = chat_on(provider, max_concurrency=1, timeout_s=2.0)
        questions = (ChatRequest((Message.user(f"question {n}"),)) for n in range(12))
        replies = await asyncio.gather(*(chat.complete(question) for question in questions))
    assert [reply.call.attempts for reply in replies] == [2] * 12


async def test_a_caller_whose_turn_never_comes_is_told_so() -> None:
    with FakeProvider([hang(60)]) as provider:
        chat = chat_on(provider, max_concurrency=1)
        holder = asyncio.create_task(chat.complete(asking()))
        await await_until(lambda: provider.requests)
        error = await failing(chat, timeout_s=0.1)
        holder.cancel()
    assert error.retryable and "could begin" in error.message
    assert len(provider.requests) == 1


async def test_the_deadline_bounds_retries_too_and_the_error_tells_what_came_before() -> None:
    with FakeProvider([status(500, message="first trouble"), hang(60)]) as provider:
        error = await failing(chat_on(provider), timeout_s=2.5)
    assert "first trouble" in error.message
    assert len(provider.requests) == 2


async def test_a_stream_that_stalls_midway_ends_at_the_deadline() -> None:
    with FakeProvider([slow(5, text("never finished"))]) as provider:
        assert (await failing(chat_on(provider), ignore, timeout_s=0.3)).retryable
