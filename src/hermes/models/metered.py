"""Applies a budget to a model that has none of its own, such as one in this process."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from hermes.models.base import ChatModel, ChatReply, ChatRequest, OnDelta
from hermes.models.budget import Budget
from hermes.models.usage import estimate_prompt

if TYPE_CHECKING:
    from hermes.config.settings import PriceSettings


class MeteredChat(ChatModel):
    """Checks each call against the budget first, and records its usage afterwards."""

    def __init__(self, model: ChatModel, price: PriceSettings | None, budget: Budget) -> None:
        self._model = model
        self._price = price
        self._budget = budget

    @property
    def name(self) -> str:
        return self._model.name

    async def complete(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        prompt_tokens, longest = estimate_prompt(request.messages, request.tools), request.sampling.max_tokens
        with self._budget.reserve(self.name, self._price, prompt_tokens, longest) as spent:
            reply = await self._model.complete(request, on_delta)
            spent.book(reply.call.usage, reply.call.cost_usd, json.dumps(reply.message.to_json()))
        return reply

    async def close(self) -> None:
        await self._model.close()
