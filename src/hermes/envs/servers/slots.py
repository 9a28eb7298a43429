"""How many requests may run at once, as a share of a whole that changes while they run."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from types import TracebackType


class AsyncSemWithAdaptiveWeight:
    """Slots in order of arrival. A smaller weight takes no slot away from a request that has it."""

    def __init__(self, value: int) -> None:
        self.max_val = value
        self.weight = 1.0
        self.in_use = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """At least one: an environment of little weight is slow, not stuck."""
        return max(1, math.ceil(self.max_val * self.weight - 1e-9))

    @property
    def free(self) -> int:
        return max(0, self.limit - self.in_use - len(self._waiting))

    def update_weight(self, weight: float) -> None:
        self.weight = weight
        self._admit()

    def locked(self) -> bool:
        return self.free == 0

    async def acquire(self) -> bool:
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        self._admit()
        try:
            await place
        except asyncio.CancelledError:
            if place.done() and not place.cancelled():
                self.release()
            elif place in self._waiting:
                self._waiting.remove(place)
            raise
        return True

    def release(self) -> None:
        self.in_use -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiting and self.in_use < self.limit:
            place = self._waiting.popleft()
            if not place.done():
                self.in_use += 1
                place.set_result(None)

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
