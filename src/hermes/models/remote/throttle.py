"""How many calls may be in flight at one endpoint: adapted to its responses, shared by all callers.

`AdaptiveLimit` (pure): while callers wait because of the limit, it grows by one after each success until the
first 429 (so it doubles with every window), and by one after each full window of successes from then on; a
429 reduces it to four fifths. All 429s of calls that were in flight when the limit was last reduced belong to
the same episode and do not reduce it again.

`Throttle` adds the queue: first come, first served; a Retry-After closes a gate until that time has passed; a
cancelled caller leaves the queue. There is one throttle per event loop and endpoint; separate processes and
loops are coordinated only by the server's 429s.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator
from weakref import WeakKeyDictionary

START = 20
DECREASE = 0.8


class AdaptiveLimit:
    """Additive increase, multiplicative decrease; without a clock or a queue."""

    def __init__(self, ceiling: int, start: int = START) -> None:
        self.ceiling = ceiling
        self.limit = min(start, ceiling)
        self.episode = 0
        """How often the limit was reduced. A call stores the value from when it started."""
        self._successes = 0

    def lower_ceiling(self, ceiling: int) -> None:
        self.ceiling = min(self.ceiling, ceiling)
        self.limit = min(self.limit, self.ceiling)

    def succeeded(self, episode: int, *, limiting: bool) -> None:
        """A call of `episode` succeeded. `limiting`: a higher limit would have been used."""
        self._successes += limiting and episode == self.episode
        window = 1 if self.episode == 0 else self.limit
        if self._successes >= window:
            self._successes = 0
            self.limit = min(self.ceiling, self.limit + 1)

    def refused(self, episode: int) -> None:
        """A 429 for a call that started in `episode`."""
        if episode == self.episode:
            self.episode += 1
            self._successes = 0
            self.limit = max(1, int(self.limit * DECREASE))


class CallPermit:
    """One caller's permission to have a call in flight."""

    def __init__(self, throttle: Throttle) -> None:
        self._throttle = throttle
        self._episode = throttle.adaptive.episode

    def succeeded(self) -> None:
        throttle = self._throttle
        throttle.adaptive.succeeded(self._episode, limiting=throttle.in_flight >= throttle.limit)

    def refused(self, retry_after_s: float | None) -> None:
        """The server returned a 429, possibly with a Retry-After."""
        self._throttle.adaptive.refused(self._episode)
        if retry_after_s is not None:
            self._throttle.close_gate(retry_after_s)


class Throttle:
    def __init__(self, ceiling: int, start: int = START) -> None:
        self.adaptive = AdaptiveLimit(ceiling, start)
        self.in_flight = 0
        self._queue: deque[asyncio.Future[None]] = deque()
        self._gate_s = float("-inf")
        self._timer: asyncio.TimerHandle | None = None

    @property
    def limit(self) -> int:
        return self.adaptive.limit

    @property
    def waiting(self) -> int:
        return sum(not waiter.done() for waiter in self._queue)

    @property
    def gate_left_s(self) -> float:
        """Until a call may start again; 0 if the gate is open."""
        return max(0.0, self._gate_s - asyncio.get_running_loop().time())

    @contextlib.asynccontextmanager
    async def slot(self) -> AsyncIterator[CallPermit]:
        await self._enter()
        try:
            yield CallPermit(self)
        finally:
            self._leave()

    def close_gate(self, seconds: float) -> None:
        """No call starts for `seconds`; a gate that is closed for longer stays so."""
        self._gate_s = max(self._gate_s, asyncio.get_running_loop().time() + seconds)

    async def _enter(self) -> None:
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(waiter)
        self._admit()
        try:
            await waiter
        except asyncio.CancelledError:
            if not waiter.cancelled():  # admitted and cancelled in the same turn of the event loop
                self._leave()
            elif waiter in self._queue:
                self._queue.remove(waiter)
            raise

    def _leave(self) -> None:
        self.in_flight -= 1
        self._admit()

    def _admit(self) -> None:
        """Admits the callers that may start now; if only the gate is closed, runs again when it opens."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._queue and self.in_flight < self.limit:
            if loop.time() < self._gate_s:
                self._timer = loop.call_at(self._gate_s, self._admit)
                return
            waiter = self._queue.popleft()
            if not waiter.done():
                self.in_flight += 1
                waiter.set_result(None)


_throttles: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Throttle]] = WeakKeyDictionary()


def throttle_for(endpoint: str, ceiling: int) -> Throttle:
    """The running loop's throttle of `endpoint`; the lowest ceiling of all callers applies."""
    throttles = _throttles.setdefault(asyncio.get_running_loop(), {})
    throttle = throttles.setdefault(endpoint, Throttle(ceiling))
    throttle.adaptive.lower_ceiling(ceiling)
    return throttle
