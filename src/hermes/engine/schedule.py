"""Who gets the device next.

Work comes in lines: the calls of one line run one after another in the order they came, and lines take turns
by the time they have used. A call is a generator: it yields None where somebody else may have a turn, or a
future to be woken by, and its line waits for that without holding up the others. A call's failure is its own.
"""

from __future__ import annotations

import time
import traceback
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from hermes.engine.memory import capacity_error, is_out_of_memory

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

Task = Generator[Future[Any] | None, None, T]


class FairShare(Generic[K]):
    """The one of several that has used the least time. Time spent idle is not saved up."""

    def __init__(self) -> None:
        self._spent: dict[K, float] = {}
        self._ready: frozenset[K] = frozenset()

    def pick(self, ready: Sequence[K]) -> K:
        """Of those that have work now; the first of equals."""
        settled = [self._spent[key] for key in ready if key in self._ready]
        floor = min(settled, default=0.0)
        self._spent = {
            key: self._spent[key]
            if key in self._ready
            else max(floor, self._spent.get(key, 0.0))
            if settled
            else 0.0
            for key in ready
        }
        self._ready = frozenset(ready)
        return min(ready, key=lambda key: self._spent[key])

    def charge(self, key: K, seconds: float) -> None:
        if key in self._spent:
            self._spent[key] += seconds


@dataclass(slots=True, eq=False)
class ScheduledCall(Generic[T]):
    what: str
    """For error messages: what there was not enough memory for."""
    start: Callable[[], Task[T]]
    future: Future[T] = field(default_factory=Future)
    steps: Task[T] | None = None

    def turn(self) -> tuple[bool, Future[Any] | None]:
        """Runs up to the next yield. Whether it is over, and what it is waiting for."""
        if self.steps is None and not self.future.set_running_or_notify_cancel():
            return True, None
        try:
            if self.steps is None:
                self.steps = self.start()
            return False, next(self.steps)
        except StopIteration as end:
            self.future.set_result(end.value)
        except Exception as error:  # noqa: BLE001 - handed on: it becomes the call's result
            self.future.set_exception(describe(error, self.what))
        return True, None

    def end(self, error: BaseException) -> None:
        """It will not be finished."""
        if self.steps is not None:
            self.steps.close()
        elif not self.future.set_running_or_notify_cancel():
            return
        self.future.set_exception(error)


def describe(error: BaseException, what: str) -> BaseException:
    """The error to report. What the failed frames held in memory is let go."""
    traceback.clear_frames(error.__traceback__)
    return capacity_error(error, what) if is_out_of_memory(error) else error


class AdapterQueues:
    """Calls in lines. `wake` is called, in any thread, when a line that waited can go on."""

    def __init__(self, wake: Callable[[Callable[[], None]], object]) -> None:
        self._lines: dict[str, deque[ScheduledCall[Any]]] = {}
        self._parked: set[str] = set()
        self._share: FairShare[str] = FairShare()
        self._wake = wake

    @property
    def runnable(self) -> list[str]:
        return [key for key, line in self._lines.items() if line and key not in self._parked]

    @property
    def waiting(self) -> int:
        return sum(len(line) for line in list(self._lines.values()))

    def length(self, key: str) -> int:
        return len(self._lines.get(key, ()))

    def add(self, key: str, call: ScheduledCall[Any]) -> None:
        self._lines.setdefault(key, deque()).append(call)

    def drop(self, key: str, error: BaseException) -> None:
        """Ends every call of a line."""
        self._parked.discard(key)
        for call in self._lines.pop(key, ()):
            call.end(error)

    def drop_all(self, error: BaseException) -> None:
        for key in list(self._lines):
            self.drop(key, error)

    def turn(self) -> None:
        """One slice of the line that has used the least time."""
        key = self._share.pick(self.runnable)
        line = self._lines[key]
        began = time.perf_counter()
        over, waits_for = line[0].turn()
        self._share.charge(key, time.perf_counter() - began)
        if over:
            line.popleft()
            if not line:
                del self._lines[key]
        elif waits_for is not None:
            self._parked.add(key)
            waits_for.add_done_callback(lambda _: self._wake(lambda: self._parked.discard(key)))
