"""Fair scheduling of adapter calls on the device.

Each adapter has a queue. The calls of a queue run one after another in order of arrival, and the queue that
has used the least time runs next. A call is a generator, a `Task`: it yields None where another queue may
run, or a future, and its queue then waits for that future without blocking the others. An error in a call
fails only that call.
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
    """Picks the key that has used the least time. Idle time is not credited."""

    def __init__(self) -> None:
        self._spent: dict[K, float] = {}
        self._ready: frozenset[K] = frozenset()

    def pick(self, ready: Sequence[K]) -> K:
        """The next of the keys that have work now; the first one of several with equal time."""
        active = [self._spent[key] for key in ready if key in self._ready]
        floor = min(active, default=0.0)
        self._spent = {
            key: self._spent[key]
            if key in self._ready
            else max(floor, self._spent.get(key, 0.0))
            if active
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
    subject: str
    """For error messages: what there was not enough memory for."""
    start: Callable[[], Task[T]]
    future: Future[T] = field(default_factory=Future)
    task: Task[T] | None = None
    """None until it has started."""
    running: bool = False
    """Whether it runs at this moment."""
    ending: BaseException | None = None
    """Why it is to end, where it was running when it was ended."""

    def run_slice(self) -> tuple[bool, Future[Any] | None]:
        """Runs to the next yield; returns whether the call is done, and the future it waits for."""
        if self.task is None and not self.future.set_running_or_notify_cancel():
            return True, None
        self.running = True
        try:
            if self.task is None:
                self.task = self.start()
            waits_for = next(self.task)
            if self.ending is None:
                return False, waits_for
            self.task.close()
            self.future.set_exception(self.ending)
        except StopIteration as end:
            self.future.set_result(end.value)
        except Exception as error:  # noqa: BLE001 - it becomes the call's result
            self.future.set_exception(reported_error(error, self.subject))
        finally:
            self.running = False
        return True, None

    def end(self, error: BaseException) -> None:
        """Stops an unfinished call and fails its future; one that is running ends at its next pause."""
        if self.running:
            self.ending = error
            return
        if self.task is not None:
            self.task.close()
        elif not self.future.set_running_or_notify_cancel():
            return
        self.future.set_exception(error)


def reported_error(error: BaseException, subject: str) -> BaseException:
    """The error to report. The failed frames are cleared, so that their tensors are freed."""
    traceback.clear_frames(error.__traceback__)
    return capacity_error(error, subject) if is_out_of_memory(error) else error


class AdapterQueues:
    """Calls by adapter. `wake` is called, in any thread, when a future that a queue waits for is done."""

    def __init__(self, wake: Callable[[Callable[[], None]], object]) -> None:
        self._queues: dict[str, deque[ScheduledCall[Any]]] = {}
        self._blocked: set[str] = set()
        """Queues whose first call waits for a future."""
        self._share: FairShare[str] = FairShare()
        self._wake = wake
        self._running: ScheduledCall[Any] | None = None
        self._paused_s = 0.0
        """For how long the running slice was paused."""

    @property
    def runnable(self) -> list[str]:
        return [key for key, calls in self._queues.items() if calls and key not in self._blocked]

    @property
    def waiting(self) -> int:
        return sum(len(calls) for calls in list(self._queues.values()))

    def length(self, key: str) -> int:
        return len(self._queues.get(key, ()))

    def add(self, key: str, call: ScheduledCall[Any]) -> None:
        self._queues.setdefault(key, deque()).append(call)

    def drop(self, key: str, error: BaseException) -> None:
        """Ends every call of a queue."""
        self._blocked.discard(key)
        for call in self._queues.pop(key, ()):
            call.end(error)

    def drop_all(self, error: BaseException) -> None:
        for key in list(self._queues):
            self.drop(key, error)

    def run_slice(self) -> None:
        """Runs one slice of the queue that has used the least time."""
        key = self._share.pick(self.runnable)
        calls = self._queues[key]
        began, self._paused_s, self._running = time.perf_counter(), 0.0, calls[0]
        try:
            done, waits_for = calls[0].run_slice()
        finally:
            self._running = None
        self._share.charge(key, time.perf_counter() - began - self._paused_s)
        if done:
            calls.popleft()
            if not calls:
                self._queues.pop(key, None)  # the call may have ended because its queue was dropped
        elif waits_for is not None:
            self._blocked.add(key)
            waits_for.add_done_callback(lambda _: self._wake(lambda: self._blocked.discard(key)))

    def paused(self, seconds: float) -> None:
        """The running call was paused for so long. Raises the reason if it was ended meanwhile."""
        self._paused_s += seconds
        if self._running is not None and self._running.ending is not None:
            raise self._running.ending


def failed_future(error: BaseException) -> Future[T]:
    """A future that raises the error."""
    future: Future[T] = Future()
    future.set_exception(error)
    return future
