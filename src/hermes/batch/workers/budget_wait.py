"""Patience with a budget: a call that finds all that is left reserved by calls in flight waits for them.

A call reserves the most it can come to, and most come to less. Without patience a run with many samples in
flight would stop, with most of its money unspent, as soon as the reservations together reach the limit.
When what was really spent reaches it, or nobody is left to wait for, the limit is reported as it is.
"""

from __future__ import annotations

import asyncio
from collections import deque

from hermes.errors import LimitError
from hermes.models.base import ChatModel, ChatReply, ChatRequest, OnDelta
from hermes.models.budget import Budget

_WOKEN_BY_ONE = 2
"""More than one, so that calls that reserve little can use the room that one large call leaves."""


class PatientChat(ChatModel):
    """The same model, for one event loop."""

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
                refused = self._others_may_settle()
                if not refused:
                    raise
            finally:
                self._active -= 1
                if not refused:
                    self._wake(_WOKEN_BY_ONE if self._active else len(self._waiting))
            await self._settled()

    async def close(self) -> None:
        await self._model.close()

    def _others_may_settle(self) -> bool:
        limit, spent = self._budget.max_cost_usd, self._budget.cost_usd
        return limit is not None and spent is not None and spent < limit and self._active > 1

    async def _settled(self) -> None:
        """Until a call that was in flight has come to its end."""
        place: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():  # woken and cancelled in the same turn of the event loop
                self._wake(1)
            raise

    def _wake(self, count: int) -> None:
        while self._waiting and count:
            place = self._waiting.popleft()
            if not place.done():
                place.set_result(None)
                count -= 1
