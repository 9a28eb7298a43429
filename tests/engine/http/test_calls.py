"""Calls of one model begin by their number, whatever order they arrive in, and once each."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.engine.server.responses import RequestError
from hermes.engine.server.tinker.calls import CallSequencer
from hermes.engine.server.tinker.futures import Failed, FutureStore, Payload
from hermes.engine.types import EngineCapacityError, EngineUserError


class Work:
    """Records what began and what ended; each piece ends when it is let go, or at once."""

    def __init__(self) -> None:
        self.begun: list[int] = []
        self.ended: list[int] = []
        self.gates: dict[int, asyncio.Event] = {}

    def piece(self, number: int, gated: bool = False) -> Callable[[], Awaitable[Payload]]:
        if gated:
            self.gates[number] = asyncio.Event()

        def start() -> Awaitable[Payload]:
            self.begun.append(number)
            return self._run(number)

        return start

    async def _run(self, number: int) -> Payload:
        if number in self.gates:
            await self.gates[number].wait()
        self.ended.append(number)
        return Payload(str(number).encode())


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


def new_sequencer(futures: FutureStore, work: Work) -> CallSequencer:
    sequencer = CallSequencer(futures, "m")
    sequencer.submit(0, "create", b"", work.piece(0), exclusive=True)
    return sequencer


@given(st.permutations(range(1, 9)), st.lists(st.integers(0, 7), max_size=8), st.sets(st.integers(1, 8)))
def test_any_arrival_order_with_repeats_runs_each_call_once_in_its_place(
    order: list[int], repeats: list[int], exclusive: set[int]
) -> None:
    async def play() -> None:
        futures, work = FutureStore(), Work()
        sequencer = new_sequencer(futures, work)
        for position, number in enumerate(order):
            first = sequencer.submit(
                number, "fb", b"%d" % number, work.piece(number), exclusive=number in exclusive
            )
            for repeat in repeats:
                if repeat <= position:
                    known = order[repeat]
                    again = sequencer.submit(known, "fb", b"%d" % known, work.piece(known))
                    assert again.id == sequencer.request_id(known)
            assert first is futures.get(first.id)
            await turn()
        await sequencer.wait_idle()
        assert work.begun == list(range(9))

    asyncio.run(play())


async def test_the_next_call_begins_while_this_one_runs() -> None:
    futures, work = FutureStore(), Work()
    sequencer = new_sequencer(futures, work)
    sequencer.submit(1, "fb", b"", work.piece(1, gated=True))
    sequencer.submit(2, "fb", b"", work.piece(2))
    await turn()
    assert (work.begun, work.ended) == ([0, 1, 2], [0, 2])


async def test_an_exclusive_call_waits_for_those_before_and_delays_those_after() -> None:
    futures, work = FutureStore(), Work()
    sequencer = new_sequencer(futures, work)
    sequencer.submit(1, "fb", b"", work.piece(1, gated=True))
    sequencer.submit(2, "save", b"", work.piece(2, gated=True), exclusive=True)
    sequencer.submit(3, "fb", b"", work.piece(3))
    await turn()
    assert work.begun == [0, 1]
    work.gates[1].set()
    await turn()
    assert work.begun == [0, 1, 2]
    work.gates[2].set()
    await turn()
    assert work.begun == [0, 1, 2, 3]


async def test_other_content_under_a_used_number_is_refused_and_changes_nothing() -> None:
    futures, work = FutureStore(), Work()
    sequencer = new_sequencer(futures, work)
    sequencer.submit(1, "fb", b"mine", work.piece(1))
    await turn()
    for kind, digest in (("fb", b"theirs"), ("optim", b"mine")):
        with pytest.raises(RequestError, match="two clients") as refused:
            sequencer.submit(1, kind, digest, work.piece(1))
        assert refused.value.status == 422
    assert work.begun == [0, 1]


async def test_a_call_that_waits_for_a_missing_one_says_so() -> None:
    futures, work = FutureStore(), Work()
    sequencer = new_sequencer(futures, work)
    await turn()
    waiting = sequencer.submit(2, "fb", b"", work.piece(2))
    assert waiting.waits_for == "call 1 of m has not arrived"
    sequencer.submit(1, "fb", b"", work.piece(1))
    await turn()
    assert waiting.waits_for == ""
    assert waiting.result == Payload(b"2")


async def test_a_failure_is_its_calls_result_and_the_next_call_still_runs() -> None:
    futures, work = FutureStore(), Work()
    sequencer = new_sequencer(futures, work)

    def refuse() -> Awaitable[Payload]:
        raise EngineUserError("no such loss", "use another")

    async def too_big() -> Payload:
        raise EngineCapacityError("does not fit")

    async def bug() -> Payload:
        raise ZeroDivisionError("oh")

    failed = [
        sequencer.submit(1, "fb", b"", refuse),
        sequencer.submit(2, "fb", b"", too_big),
        sequencer.submit(3, "fb", b"", bug),
    ]
    last = sequencer.submit(4, "fb", b"", work.piece(4))
    await sequencer.wait_idle()
    assert [call.result for call in failed] == [
        Failed("no such loss (use another)", "user"),
        Failed("does not fit", "server"),
        Failed("internal error: ZeroDivisionError: oh", "server"),
    ]
    assert last.result == Payload(b"4")


async def test_a_closed_sequencer_fails_queued_calls_and_rejects_new_ones() -> None:
    futures, work = FutureStore(), Work()
    sequencer = new_sequencer(futures, work)
    await turn()
    waiting = sequencer.submit(5, "fb", b"", work.piece(5))
    sequencer.close("the session is over")
    assert waiting.result == Failed("the session is over", "user")
    with pytest.raises(RequestError, match="the session is over"):
        sequencer.submit(1, "fb", b"", work.piece(1))
