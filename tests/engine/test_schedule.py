from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import CancelledError, Future

import pytest
import torch

from hermes.engine.schedule import AdapterQueues, FairShare, ScheduledCall, Task
from hermes.engine.types import EngineCapacityError, EngineUserError


def test_time_is_shared_evenly_between_slow_and_fast() -> None:
    share: FairShare[str] = FairShare()
    cost, spent = {"slow": 5.0, "fast": 0.5, "middle": 1.0}, Counter[str]()
    for _ in range(400):
        key = share.pick(list(cost))
        share.charge(key, cost[key])
        spent[key] += cost[key]  # type: ignore[assignment]
    assert max(spent.values()) - min(spent.values()) <= 2 * cost["slow"]


def test_time_spent_idle_is_not_saved_up() -> None:
    share: FairShare[str] = FairShare()
    share.pick(["a", "b"])
    for _ in range(100):
        assert share.pick(["a"]) == "a"
        share.charge("a", 1.0)
    turns = []
    for _ in range(10):
        turns.append(share.pick(["a", "b"]))
        share.charge(turns[-1], 1.0)
    assert 4 <= turns.count("b") <= 6


class Driver:
    """Lines whose wake-ups wait in a list, as they do in an inbox."""

    def __init__(self) -> None:
        self.inbox: list[Callable[[], None]] = []
        self.queues = AdapterQueues(self.inbox.append)
        self.log: list[str] = []

    def add(
        self, key: str, name: str, turns: int = 1, waits_for: Future[int] | None = None
    ) -> ScheduledCall[str]:
        def steps() -> Task[str]:
            for turn in range(turns):
                self.log.append(f"{name}{turn}")
                yield waits_for if turn == 0 else None
            return name

        call = ScheduledCall("the test", steps)
        self.queues.add(key, call)
        return call

    def run(self) -> None:
        while self.queues.runnable:
            self.queues.run_slice()


def test_a_line_keeps_its_order_while_lines_take_turns() -> None:
    driver = Driver()
    calls = [driver.add("x", "a", 3), driver.add("x", "b", 2), driver.add("y", "c", 3)]
    driver.run()
    assert [call.future.result(timeout=0) for call in calls] == ["a", "b", "c"]
    assert [one for one in driver.log if one[0] in "ab"] == ["a0", "a1", "a2", "b0", "b1"]
    assert driver.log.index("c0") < driver.log.index("a2")


def test_a_call_that_waits_holds_up_its_own_line_only() -> None:
    driver, waited = Driver(), Future[int]()
    first, second = driver.add("x", "a", 2, waits_for=waited), driver.add("x", "b")
    other = driver.add("y", "c", 3)
    driver.run()
    assert other.future.done() and not first.future.done() and not second.future.done()
    waited.set_result(1)
    driver.inbox.pop()()
    driver.run()
    assert first.future.result(timeout=0) == "a" and second.future.result(timeout=0) == "b"


def test_a_failure_is_its_own_calls_and_the_line_goes_on() -> None:
    driver = Driver()

    def wrong() -> Task[str]:
        yield None
        raise EngineUserError("no such thing")

    def too_big() -> Task[str]:
        yield None
        torch.empty(1 << 60)
        return "never"

    failing, huge = ScheduledCall("a", wrong), ScheduledCall("the cake", too_big)
    driver.queues.add("x", failing)
    driver.queues.add("x", huge)
    good = driver.add("x", "g")
    driver.run()
    with pytest.raises(EngineUserError, match="no such thing"):
        failing.future.result(timeout=0)
    with pytest.raises(EngineCapacityError, match="the cake"):
        huge.future.result(timeout=0)
    assert good.future.result(timeout=0) == "g"


def test_what_a_failed_call_held_in_memory_is_let_go() -> None:
    import weakref

    driver, seen = Driver(), list[weakref.ref[torch.Tensor]]()

    def failing() -> Task[str]:
        large = torch.zeros(1000)
        seen.append(weakref.ref(large))
        yield None
        raise RuntimeError("after allocating")

    call = ScheduledCall("a", failing)
    driver.queues.add("x", call)
    driver.run()
    assert call.future.exception(timeout=0) is not None
    assert seen[0]() is None


def test_a_dropped_line_ends_all_its_calls_and_a_cancelled_call_is_skipped() -> None:
    driver = Driver()
    running, waiting = driver.add("x", "a", 5), driver.add("x", "b")
    driver.queues.run_slice()
    driver.queues.drop("x", EngineUserError("dropped"))
    for call in (running, waiting):
        with pytest.raises(EngineUserError, match="dropped"):
            call.future.result(timeout=0)
    cancelled, after = driver.add("y", "c"), driver.add("y", "d")
    assert cancelled.future.cancel()
    driver.run()
    assert after.future.result(timeout=0) == "d" and "c0" not in driver.log
    with pytest.raises(CancelledError):
        cancelled.future.result(timeout=0)
