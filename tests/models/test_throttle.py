from __future__ import annotations

import asyncio
import random

import pytest

from hermes.models.remote.throttle import AdaptiveLimit, Throttle, throttle_for


def succeed(adaptive: AdaptiveLimit, times: int, *, limiting: bool = True) -> None:
    for _ in range(times):
        adaptive.succeeded(adaptive.episode, limiting=limiting)


def test_the_limit_starts_at_twenty_or_at_a_lower_ceiling() -> None:
    assert AdaptiveLimit(100).limit == 20
    assert AdaptiveLimit(5).limit == 5


def test_until_the_first_refusal_every_window_doubles_the_limit() -> None:
    adaptive = AdaptiveLimit(1000)
    succeed(adaptive, 20)
    assert adaptive.limit == 40
    succeed(adaptive, 40)
    assert adaptive.limit == 80


def test_after_a_refusal_a_full_window_of_successes_adds_one() -> None:
    adaptive = AdaptiveLimit(100)
    adaptive.refused(adaptive.episode)
    assert adaptive.limit == 16
    succeed(adaptive, 15)
    assert adaptive.limit == 16
    succeed(adaptive, 1)
    assert adaptive.limit == 17
    succeed(adaptive, 16)
    assert adaptive.limit == 17
    succeed(adaptive, 1)
    assert adaptive.limit == 18


def test_the_ceiling_is_never_passed() -> None:
    adaptive = AdaptiveLimit(22)
    succeed(adaptive, 1000)
    assert adaptive.limit == 22


def test_successes_under_light_load_teach_nothing() -> None:
    adaptive = AdaptiveLimit(100)
    succeed(adaptive, 1000, limiting=False)
    assert adaptive.limit == 20


def test_a_refusal_takes_a_fifth_and_ends_the_window() -> None:
    adaptive = AdaptiveLimit(100)
    adaptive.refused(adaptive.episode)
    succeed(adaptive, 15)
    adaptive.refused(adaptive.episode)
    assert adaptive.limit == 12
    succeed(adaptive, 11)
    assert adaptive.limit == 12


def test_all_refusals_of_calls_already_under_way_are_one_episode() -> None:
    adaptive = AdaptiveLimit(100)
    started_in = adaptive.episode
    for _ in range(20):
        adaptive.refused(started_in)
    assert adaptive.limit == 16
    adaptive.refused(adaptive.episode)
    assert adaptive.limit == 12


def test_successes_of_calls_from_before_the_fall_do_not_count_towards_growth() -> None:
    adaptive = AdaptiveLimit(100)
    before = adaptive.episode
    adaptive.refused(before)
    for _ in range(100):
        adaptive.succeeded(before, limiting=True)
    assert adaptive.limit == 16


def test_the_limit_never_falls_below_one_and_recovers_from_there() -> None:
    adaptive = AdaptiveLimit(100)
    for _ in range(50):
        adaptive.refused(adaptive.episode)
    assert adaptive.limit == 1
    succeed(adaptive, 1)
    assert adaptive.limit == 2


def test_against_a_fixed_capacity_the_limit_saws_between_four_fifths_and_just_above() -> None:
    adaptive, capacity = AdaptiveLimit(100), 40
    limits = []
    for _ in range(2000):
        limits.append(adaptive.limit)
        if adaptive.limit > capacity:
            adaptive.refused(adaptive.episode)
        else:
            succeed(adaptive, adaptive.limit)
    settled = limits[100:]
    assert min(settled) == 32
    assert max(settled) == 41


async def settle() -> None:
    """Lets every task run until it waits."""
    for _ in range(5):
        await asyncio.sleep(0)


class Caller:
    """A task that takes a slot and holds it until told to let go."""

    def __init__(self, throttle: Throttle, order: list[int], number: int) -> None:
        self.leave = asyncio.Event()
        self.task = asyncio.create_task(self._run(throttle, order, number))

    async def _run(self, throttle: Throttle, order: list[int], number: int) -> None:
        async with throttle.slot():
            order.append(number)
            await self.leave.wait()


async def test_no_more_than_the_limit_are_in_flight_and_the_gauges_say_so() -> None:
    throttle = Throttle(100, start=2)
    order: list[int] = []
    callers = [Caller(throttle, order, number) for number in range(5)]
    await settle()
    assert (throttle.in_flight, throttle.limit, throttle.waiting) == (2, 2, 3)
    for caller in callers:
        caller.leave.set()
    await asyncio.gather(*(caller.task for caller in callers))
    assert (throttle.in_flight, throttle.waiting) == (0, 0)


async def test_callers_are_served_in_the_order_they_came() -> None:
    throttle = Throttle(1)
    order: list[int] = []
    callers = [Caller(throttle, order, number) for number in range(10)]
    await settle()
    assert (order, throttle.waiting) == ([0], 9)
    for caller in callers:
        caller.leave.set()
    await asyncio.gather(*(caller.task for caller in callers))
    assert order == list(range(10))


async def test_a_newcomer_does_not_overtake_those_who_wait() -> None:
    throttle = Throttle(1)
    order: list[int] = []
    first, second = Caller(throttle, order, 1), Caller(throttle, order, 2)
    await settle()
    first.leave.set()
    await asyncio.sleep(0)
    third = Caller(throttle, order, 3)
    second.leave.set()
    third.leave.set()
    await asyncio.gather(first.task, second.task, third.task)
    assert order == [1, 2, 3]


async def test_cancelling_one_who_holds_a_slot_frees_it() -> None:
    throttle = Throttle(1)
    order: list[int] = []
    holder, waiter = Caller(throttle, order, 1), Caller(throttle, order, 2)
    await settle()
    holder.task.cancel()
    await settle()
    assert order == [1, 2]
    waiter.leave.set()
    await waiter.task
    assert throttle.in_flight == 0


async def test_cancelling_one_who_waits_loses_no_place() -> None:
    throttle = Throttle(1)
    order: list[int] = []
    holder, leaver, last = (Caller(throttle, order, number) for number in range(3))
    await settle()
    leaver.task.cancel()
    await settle()
    assert throttle.waiting == 1
    holder.leave.set()
    last.leave.set()
    await asyncio.gather(holder.task, last.task)
    assert order == [0, 2]
    assert throttle.in_flight == 0


async def test_cancelling_in_the_very_moment_of_admission_loses_no_place() -> None:
    throttle = Throttle(1)
    order: list[int] = []
    holder, admitted, last = (Caller(throttle, order, number) for number in range(3))
    await settle()
    holder.task.cancel()  # its slot passes to `admitted` in the next turn, when that is cancelled too
    await asyncio.sleep(0)
    admitted.task.cancel()
    last.leave.set()
    await last.task
    await settle()
    assert order[-1] == 2
    assert (throttle.in_flight, throttle.waiting) == (0, 0)


async def test_random_cancellations_never_leak_a_slot() -> None:
    rng = random.Random(11)
    throttle = Throttle(3)

    async def work() -> None:
        async with throttle.slot() as slot:
            assert throttle.in_flight <= 20
            await asyncio.sleep(rng.random() * 0.002)
            slot.succeeded() if rng.random() < 0.9 else slot.refused(None)

    tasks = [asyncio.create_task(work()) for _ in range(500)]
    for task in tasks:
        if rng.random() < 0.4:
            asyncio.get_running_loop().call_later(rng.random() * 0.3, task.cancel)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert (throttle.in_flight, throttle.waiting) == (0, 0)
    async with asyncio.timeout(10), throttle.slot():
        assert throttle.in_flight == 1


async def test_nobody_starts_before_a_closed_gate_opens() -> None:
    loop, throttle = asyncio.get_running_loop(), Throttle(5)
    throttle.close_gate(0.05)
    throttle.close_gate(0.01)
    opens_at = loop.time() + throttle.gate_left_s
    started: list[float] = []

    async def work() -> None:
        async with throttle.slot():
            started.append(loop.time())

    await asyncio.gather(*(work() for _ in range(12)))
    assert len(started) == 12
    assert min(started) >= opens_at - 1e-6


async def test_a_gate_that_closes_while_others_wait_holds_them_too() -> None:
    loop, throttle = asyncio.get_running_loop(), Throttle(1)
    closed_until = 0.0

    async def refused() -> None:
        nonlocal closed_until
        async with throttle.slot() as slot:
            await asyncio.sleep(0.01)
            slot.refused(0.05)
            closed_until = loop.time() + throttle.gate_left_s

    async def waiting() -> float:
        async with throttle.slot():
            return loop.time()

    _, started = await asyncio.gather(refused(), waiting())
    assert started >= closed_until - 1e-6


async def test_all_callers_of_an_endpoint_share_one_throttle_with_the_lowest_ceiling() -> None:
    one = throttle_for("http://a/v1", 50)
    assert throttle_for("http://a/v1", 10) is one
    assert throttle_for("http://a/v1", 70) is one
    assert one.adaptive.ceiling == 10
    assert throttle_for("http://b/v1", 50) is not one


def test_another_event_loop_has_throttles_of_its_own() -> None:
    async def throttle() -> Throttle:
        return throttle_for("http://a/v1", 1)

    assert asyncio.run(throttle()) is not asyncio.run(throttle())


@pytest.mark.parametrize("limit", [1, 3])
async def test_a_ceiling_below_the_current_limit_takes_hold(limit: int) -> None:
    throttle = throttle_for("http://c/v1", 50)
    throttle_for("http://c/v1", limit)
    assert throttle.limit == limit
