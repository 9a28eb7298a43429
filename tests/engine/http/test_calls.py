"""Results are kept until they were fetched, and a while after; never without bound."""

from __future__ import annotations

import asyncio

from hermes.engine.server.tinker.futures import KEPT_S, Failed, FutureStore, Payload, PendingFuture


def finished(calls: FutureStore, name: str, body: bytes = b"x") -> PendingFuture:
    call = calls.open(PendingFuture(name, "sample"))
    call.finish(Payload(body))
    return call


async def test_a_result_that_nobody_fetched_is_never_forgotten() -> None:
    calls = FutureStore()
    finished(calls, "a")
    calls.forget(1e12)
    assert calls.get("a") is not None


async def test_a_fetched_result_can_be_fetched_again_for_a_while() -> None:
    calls = FutureStore()
    call = finished(calls, "a")
    calls.fetched(call, now_s=100.0)
    calls.forget(100.0 + KEPT_S - 1)
    assert calls.get("a") is call
    calls.forget(100.0 + KEPT_S)
    assert calls.get("a") is None


async def test_fetched_results_beyond_the_bound_go_oldest_first() -> None:
    calls = FutureStore(kept_bytes=10)
    for name in "abc":
        calls.fetched(finished(calls, name, b"12345"), now_s=1.0)
    assert [calls.get(name) is None for name in "abc"] == [True, False, False]


async def test_what_a_session_left_behind_is_forgotten_after_a_while() -> None:
    calls = FutureStore()
    finished(calls, "s:train:0:1")
    running = calls.open(PendingFuture("s:train:0:2", "fb"))
    finished(calls, "s2:train:0:1")
    calls.abandon("s")
    calls.forget(1e12)
    assert [calls.get(name) is None for name in ("s:train:0:1", "s:train:0:2", "s2:train:0:1")] == [
        True,
        False,
        False,
    ]
    assert calls.get(running.id) is running


async def test_what_still_ran_when_its_session_ended_is_cancelled_and_forgotten_once_it_ends() -> None:
    calls = FutureStore()
    sampling = calls.open(PendingFuture("s:sample:0:1", "sample"))
    sampling.cancel = lambda: sampling.finish(Failed("it was cancelled", "user"))
    training = calls.open(PendingFuture("s:train:0:1", "fb"))
    other = calls.open(PendingFuture("s2:sample:0:1", "sample", cancel=lambda: None))
    calls.abandon("s")
    await asyncio.sleep(0)
    assert sampling.outcome == Failed("it was cancelled", "user") and training.outcome is None
    training.finish(Payload(b"x"))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    calls.forget(1e12)
    assert [calls.get(call.id) is None for call in (sampling, training, other)] == [True, True, False]


async def test_what_is_given_up_is_stopped_where_it_can_be_and_forgotten() -> None:
    calls = FutureStore()
    sampling = calls.open(PendingFuture("s:sample:0:1", "sample"))
    sampling.cancel = lambda: sampling.finish(Failed("it was cancelled", "user"))
    done = finished(calls, "s:sample:0:0")
    training = calls.open(PendingFuture("s:train:0:1", "fb"))
    other = calls.open(PendingFuture("s2:sample:0:1", "sample", cancel=lambda: other.finish(Payload(b"x"))))
    calls.give_up("s")
    assert sampling.outcome == Failed("it was cancelled", "user")
    assert calls.get(sampling.id) is None
    assert [calls.get(call.id) for call in (done, training, other)] == [done, training, other]
    assert (training.outcome, other.outcome) == (None, None)


async def test_the_first_outcome_stays() -> None:
    call = PendingFuture("a", "sample")
    call.finish(Failed("first", "user"))
    call.finish(Payload(b"second"))
    assert call.outcome == Failed("first", "user")


async def test_a_wait_ends_with_the_outcome_in_time_or_with_the_server() -> None:
    calls = FutureStore()
    call = calls.open(PendingFuture("a", "sample"))
    assert await calls.wait(call, 0.01) is None
    asyncio.get_running_loop().call_later(0.01, call.finish, Payload(b"x"))
    assert await calls.wait(call, 60) == Payload(b"x")
    held = asyncio.ensure_future(calls.wait(calls.open(PendingFuture("b", "sample")), 60))
    await asyncio.sleep(0)
    calls.close()
    assert await held is None
