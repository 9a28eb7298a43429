"""Results are stored until they are fetched and for a while after, within a bound."""

from __future__ import annotations

import asyncio

from hermes.engine.server.tinker.futures import RETENTION_S, Failed, FutureStore, Payload, PendingFuture
from tests.waiting import await_until


def finished(futures: FutureStore, name: str, body: bytes = b"x") -> PendingFuture:
    pending = futures.add(PendingFuture(name, "sample"))
    pending.finish(Payload(body))
    return pending


async def test_a_result_that_was_not_fetched_does_not_expire() -> None:
    futures = FutureStore()
    finished(futures, "a")
    futures.expire(1e12)
    assert futures.get("a") is not None


async def test_a_fetched_result_can_be_fetched_again_for_a_while() -> None:
    futures = FutureStore()
    pending = finished(futures, "a")
    futures.mark_fetched(pending, now_s=100.0)
    futures.expire(100.0 + RETENTION_S - 1)
    assert futures.get("a") is pending
    futures.expire(100.0 + RETENTION_S)
    assert futures.get("a") is None


async def test_fetched_results_beyond_the_bound_go_oldest_first() -> None:
    futures = FutureStore(retention_bytes=10)
    for name in "abc":
        futures.mark_fetched(finished(futures, name, b"12345"), now_s=1.0)
    assert [futures.get(name) is None for name in "abc"] == [True, False, False]


async def test_the_results_of_a_released_session_expire() -> None:
    futures = FutureStore()
    finished(futures, "s:train:0:1")
    running = futures.add(PendingFuture("s:train:0:2", "fb"))
    finished(futures, "s2:train:0:1")
    futures.release_session("s")
    futures.expire(1e12)
    assert [futures.get(name) is None for name in ("s:train:0:1", "s:train:0:2", "s2:train:0:1")] == [
        True,
        False,
        False,
    ]
    assert futures.get(running.id) is running


async def test_releasing_a_session_cancels_what_runs_and_expires_it_once_it_has_ended() -> None:
    futures = FutureStore()
    sampling = futures.add(PendingFuture("s:sample:0:1", "sample"))
    sampling.cancel = lambda: sampling.finish(Failed("it was cancelled", "user"))
    training = futures.add(PendingFuture("s:train:0:1", "fb"))
    other = futures.add(PendingFuture("s2:sample:0:1", "sample", cancel=lambda: None))
    futures.release_session("s")
    await await_until(lambda: sampling.result)
    assert sampling.result == Failed("it was cancelled", "user") and training.result is None
    training.finish(Payload(b"x"))
    async with asyncio.timeout(60):
        while not (sampling.fetched and training.fetched):  # noqa: ASYNC110 - there is no event for it
            await asyncio.sleep(0)
    futures.expire(1e12)
    assert [futures.get(pending.id) is None for pending in (sampling, training, other)] == [True, True, False]


async def test_cancelling_a_session_stops_and_drops_what_can_be_cancelled() -> None:
    futures = FutureStore()
    sampling = futures.add(PendingFuture("s:sample:0:1", "sample"))
    sampling.cancel = lambda: sampling.finish(Failed("it was cancelled", "user"))
    done = finished(futures, "s:sample:0:0")
    training = futures.add(PendingFuture("s:train:0:1", "fb"))
    other = futures.add(PendingFuture("s2:sample:0:1", "sample", cancel=lambda: other.finish(Payload(b"x"))))
    futures.cancel_session("s")
    assert sampling.result == Failed("it was cancelled", "user")
    assert futures.get(sampling.id) is None
    assert [futures.get(pending.id) for pending in (done, training, other)] == [done, training, other]
    assert (training.result, other.result) == (None, None)


async def test_the_first_result_is_final() -> None:
    pending = PendingFuture("a", "sample")
    pending.finish(Failed("first", "user"))
    pending.finish(Payload(b"second"))
    assert pending.result == Failed("first", "user")


async def test_a_poll_ends_with_the_result_the_timeout_or_the_server() -> None:
    futures = FutureStore()
    pending = futures.add(PendingFuture("a", "sample"))
    assert await futures.wait(pending, 0.01) is None
    asyncio.get_running_loop().call_later(0.01, pending.finish, Payload(b"x"))
    assert await futures.wait(pending, 60) == Payload(b"x")
    poll = asyncio.ensure_future(futures.wait(futures.add(PendingFuture("b", "sample")), 60))
    await asyncio.sleep(0)
    futures.close()
    assert await poll is None
