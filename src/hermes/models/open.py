"""Opens a model by its name."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from hermes.errors import UsageError
from hermes.models.base import ChatModel, ChatReply, ChatRequest, OnDelta
from hermes.models.budget import Budget
from hermes.models.usage import estimate_prompt, price_of

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.config.settings import PriceSettings
    from hermes.models.base import ChatModel
    from hermes.models.tokens.completions import CompletionModel


def open_model(
    config: Config,
    model: str | None = None,
    base_url: str | None = None,
    budget: Budget | None = None,
    progress: Callable[[str], None] | None = None,
) -> ChatModel:
    """The model named `model` (provider/name; None: the configured default), bound by `budget`.

    `base_url` is any OpenAI-compatible endpoint, instead of a configured provider. No request is sent yet,
    but a name that cannot be resolved, a missing key or an unknown parser is an error now. `progress` is
    called with a line for each step that a model in this process takes before its first answer.
    """
    from hermes.config.providers import resolve_model

    settings = config.settings
    target = resolve_model(settings, config.environ, model or settings.model, base_url)
    if target.is_local:
        from hermes.models.local.chat import LocalChat

        local = LocalChat.open(target.model, config.home, progress)
        return local if budget is None else MeteredChat(local, price_of(settings, target.name), budget)
    from hermes.models.remote.openai_chat import OpenAIChat

    return OpenAIChat(target, price_of(settings, target.name), budget)


def open_completions(
    config: Config, model: str | None = None, base_url: str | None = None, budget: Budget | None = None
) -> CompletionModel:
    """The same for token-level completions, which only remote endpoints offer."""
    from hermes.config.providers import resolve_model
    from hermes.models.tokens.completions import CompletionModel

    settings = config.settings
    target = resolve_model(settings, config.environ, model or settings.model, base_url)
    if target.is_local:
        raise UsageError(
            f"{target.name} runs in this process and has no completions endpoint.",
            "Name a served model, such as vllm/NAME, or give --base-url.",
        )
    return CompletionModel(target, price_of(settings, target.name), budget)


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
