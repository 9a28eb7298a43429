"""Waiting for a budget: a call that cannot reserve its cost waits for the calls in flight to finish.

A call reserves its maximum cost, and most calls cost less. Without waiting, a run with many samples in flight
would stop with most of its budget unspent, as soon as the reservations reach the limit. When the actual cost
reaches the limit, or no other call is in flight, LimitError is raised.
"""

from __future__ import annotations

import asyncio
from collections import deque

from hermes.errors import LimitError
from hermes.models.base import ChatModel, ChatReply, ChatRequest, OnDelta
from hermes.models.budget import Budget

_WAKE_PER_CALL = 2
"""More than one, so that several small calls can use the budget that a large one releases."""


class BudgetWaitingModel(ChatModel):
    """Wraps a model, for one event loop."""

    def __init__(self, model: ChatModel, budget: Budget) -> None:
        self._model = model
        self._budget = budget
        self._active = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def throttle(self) -> object:
        return getattr(self._model, "throttle", None)

    async def complete(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        while True:
            self._active += 1
            refused = False
            try:
                return await self._model.complete(request, on_delta)
            except LimitError:
                refused = self._can_wait()
                if not refused:
                    raise
            finally:
                self._active -= 1
                if not refused:
                    self._wake(_WAKE_PER_CALL if self._active else len(self._waiting))
            await self._wait_for_release()

    async def close(self) -> None:
        await self._model.close()

    def _can_wait(self) -> bool:
        limit, spent = self._budget.max_cost_usd, self._budget.cost_usd
        return limit is not None and spent is not None and spent < limit and self._active > 1

    async def _wait_for_release(self) -> None:
        """Returns when a call in flight has finished."""
        released: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(released)
        try:
            await released
        except asyncio.CancelledError:
            if not released.cancelled():  # woken and cancelled in the same turn of the event loop
                self._wake(1)
            raise

    def _wake(self, count: int) -> None:
        while self._waiting and count:
            released = self._waiting.popleft()
            if not released.done():
                released.set_result(None)
                count -= 1
