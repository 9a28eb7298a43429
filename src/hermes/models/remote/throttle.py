"""How many calls may be in flight at one endpoint: learned from its answers, shared by all callers.

The law (`AdaptiveLimit`, pure): while the limit is what holds callers back, one more after each success
until the first rate-limit answer (so it doubles with every window), and one more after each full window
of successes from then on; four fifths after a rate-limit answer. All 429s of calls that were under way
when the limit last fell belong to that episode and lower it no further.

`Throttle` adds the queue: first come, first served; a Retry-After closes a gate that no call passes
before its time; a cancelled caller gives its place back. One event loop has one throttle per endpoint;
separate processes and loops do not know of each other and meet in the server's 429s.
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
    """Additive increase, multiplicative decrease; knows no clock and no queue."""

    def __init__(self, ceiling: int, start: int = START) -> None:
        self.ceiling = ceiling
        self.limit = min(start, ceiling)
        self.episode = 0
        """How often the limit has fallen. A call remembers the value from when it started."""
        self._successes = 0

    def lower_ceiling(self, ceiling: int) -> None:
        self.ceiling = min(self.ceiling, ceiling)
        self.limit = min(self.limit, self.ceiling)

    def succeeded(self, episode: int, *, limiting: bool) -> None:
        """A call of `episode` was answered. `limiting`: a higher limit would have been used."""
        self._successes += limiting and episode == self.episode
        window = 1 if self.episode == 0 else self.limit
        if self._successes >= window:
            self._successes = 0
            self.limit = min(self.ceiling, self.limit + 1)

    def refused(self, episode: int) -> None:
        """A rate-limit answer to a call that started in `episode`."""
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
        """The server asked to slow down, and perhaps until when."""
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
        return sum(not place.done() for place in self._queue)

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
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queue.append(place)
        self._admit()
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # admitted and cancelled in the same turn of the event loop
                self._leave()
            elif place in self._queue:
                self._queue.remove(place)
            raise

    def _leave(self) -> None:
        self.in_flight -= 1
        self._admit()

    def _admit(self) -> None:
        """Lets in whoever may start now; if only the gate is in the way, comes back when it opens."""
        if self._timer:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._queue and self.in_flight < self.limit:
            if loop.time() < self._gate_s:
                self._timer = loop.call_at(self._gate_s, self._admit)
                return
            place = self._queue.popleft()
            if not place.done():
                self.in_flight += 1
                place.set_result(None)


_throttles: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, Throttle]] = WeakKeyDictionary()


def throttle_for(endpoint: str, ceiling: int) -> Throttle:
    """The running loop's throttle of `endpoint`; the lowest ceiling anyone asked for holds."""
    throttles = _throttles.setdefault(asyncio.get_running_loop(), {})
    throttle = throttles.setdefault(endpoint, Throttle(ceiling))
    throttle.adaptive.lower_ceiling(ceiling)
    return throttle
