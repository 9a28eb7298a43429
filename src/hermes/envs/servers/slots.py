"""A semaphore whose limit is a share of a maximum, and whose share can change while requests run."""

from __future__ import annotations

import asyncio
import math
from collections import deque
from types import TracebackType


class AsyncSemWithAdaptiveWeight:
    """First come, first served. A smaller weight does not interrupt requests that have a slot."""

    def __init__(self, value: int) -> None:
        self.max_val = value
        self.weight = 1.0
        self.in_use = 0
        self._waiters: deque[asyncio.Future[None]] = deque()

    @property
    def limit(self) -> int:
        """At least 1, so that an environment of little weight is slow but not stuck."""
        return max(1, math.ceil(self.max_val * self.weight - 1e-9))

    @property
    def free(self) -> int:
        return max(0, self.limit - self.in_use - len(self._waiters))

    def update_weight(self, weight: float) -> None:
        self.weight = weight
        self._admit()

    def locked(self) -> bool:
        return self.free == 0

    async def acquire(self) -> bool:
        waiter = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._admit()
        try:
            await waiter
        except asyncio.CancelledError:
            if waiter.done() and not waiter.cancelled():
                self.release()
            elif waiter in self._waiters:
                self._waiters.remove(waiter)
            raise
        return True

    def release(self) -> None:
        self.in_use -= 1
        self._admit()

    def _admit(self) -> None:
        while self._waiters and self.in_use < self.limit:
            waiter = self._waiters.popleft()
            if not waiter.done():
                self.in_use += 1
                waiter.set_result(None)

    async def __aenter__(self) -> None:
        await self.acquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()
