"""One budget for all workers of a run: the pool keeps the account, each model call asks it first.

A call reserves the most it may cost, and most calls cost less. So a call that finds the budget reserved
waits for the calls in flight; it is refused once the money is really spent. Concurrent calls overshoot the
limit by at most one call, or, where the length of an answer is unbounded, by at most one call each. Not
counted: the calls that were in flight in a worker that died.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import count
from typing import NamedTuple

from hermes.config.settings import PriceSettings
from hermes.core import JSONObject, Usage
from hermes.errors import LimitError
from hermes.models.base import ChatModel, ChatReply, ChatRequest, OnDelta
from hermes.models.budget import Budget
from hermes.models.usage import cost_usd, estimate_prompt


class CallName(NamedTuple):
    worker: str
    number: int


@dataclass
class CostLedger:
    """The pool's account of a run. No I/O."""

    limit_usd: float
    spent_usd: float | None = 0.0
    """None as soon as one call's cost is unknown."""
    _reserved_usd: dict[CallName, float] = field(default_factory=dict)
    _waiting: deque[tuple[CallName, float]] = field(default_factory=deque)

    def reserve(self, call: CallName, usd: float) -> None:
        """Queues a call that may cost this much; `decide` says when it starts."""
        self._waiting.append((call, usd))

    def settle(self, call: CallName, usd: float | None) -> None:
        """Ends a call, or adds a cost that no call has reserved."""
        self._reserved_usd.pop(call, None)
        self.spent_usd = None if self.spent_usd is None or usd is None else self.spent_usd + usd

    def end_worker(self, worker: str) -> None:
        """Releases all that a worker has reserved."""
        self._waiting = deque(waiting for waiting in self._waiting if waiting[0].worker != worker)
        for call in [call for call in self._reserved_usd if call.worker == worker]:
            del self._reserved_usd[call]

    def decide(self) -> Iterator[tuple[CallName, str | None]]:
        """The calls that need not wait any longer, each with the reason if it is refused."""
        while self._waiting:
            call, usd = self._waiting[0]
            refusal = None
            if self.spent_usd is None:
                refusal = f"a cost limit of ${self.limit_usd:g} is set, but the cost of a call is unknown"
            elif self.spent_usd >= self.limit_usd:
                refusal = f"${self.spent_usd:.4f} of ${self.limit_usd:g} spent"
            elif self.spent_usd + sum(self._reserved_usd.values()) >= self.limit_usd:
                return
            else:
                self._reserved_usd[call] = usd
            self._waiting.popleft()
            yield call, refusal


class BudgetedModel(ChatModel):
    """A worker's model, whose calls ask the pool. It belongs to one event loop."""

    def __init__(
        self,
        model: ChatModel,
        budget: Budget,
        price: PriceSettings | None,
        send_report: Callable[[JSONObject], None],
    ) -> None:
        """`budget`: the one that the calls of `model` are booked in."""
        self._model = model
        self._budget = budget
        self.price = price
        self._send_report = send_report
        self._numbers = count()
        self._reported_usd = 0.0
        self._waiting: dict[int, asyncio.Future[None]] = {}

    @property
    def name(self) -> str:
        return self._model.name

    @property
    def throttle(self) -> object:
        return getattr(self._model, "throttle", None)

    async def complete(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        number = next(self._numbers)
        prompt_tokens = estimate_prompt(request.messages, request.tools)
        worst = Usage(prompt_tokens, output_tokens=request.sampling.max_tokens or 0)
        self._waiting[number] = asyncio.get_running_loop().create_future()
        self._send_report({"say": "reserve", "call": number, "usd": cost_usd(worst, self.price) or 0.0})
        try:
            await self._waiting[number]
            return await self._model.complete(request, on_delta)
        finally:
            del self._waiting[number]
            self._settle(number)

    def decide(self, number: int, refusal: str | None) -> None:
        """Takes the pool's answer; no effect if the call was cancelled meanwhile."""
        decision = self._waiting.get(number)
        if decision is None or decision.done():
            return
        if refusal is None:
            decision.set_result(None)
        else:
            decision.set_exception(LimitError("max_cost", refusal))

    async def close(self) -> None:
        await self._model.close()

    def _settle(self, number: int) -> None:
        """Reports what was booked since the last report, failed attempts included."""
        total_usd = self._budget.cost_usd
        spent_usd = None if total_usd is None else total_usd - self._reported_usd
        self._reported_usd = total_usd or 0.0
        self._send_report({"say": "spent", "call": number, "usd": spent_usd})
