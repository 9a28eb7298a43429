"""Opens a model by its name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING

from hermes.errors import ProviderError, UsageError
from hermes.models.base import ChatModel, ChatReply, ChatRequest, OnDelta
from hermes.models.budget import Budget
from hermes.models.usage import estimate_prompt, price_at

if TYPE_CHECKING:
    from hermes.config.load import Config
    from hermes.config.settings import PriceSettings


def open_model(
    config: Config,
    model: str | None = None,
    base_url: str | None = None,
    budget: Budget | None = None,
    progress: Callable[[str], None] | None = None,
    label: str | None = None,
) -> ChatModel:
    """The model named `model` (provider/name; None: the configured default), bound by `budget`.

    `base_url` is any OpenAI-compatible endpoint, instead of a configured provider; `label` is what people
    call the model there. No request is sent yet, but a name that cannot be resolved, a missing key or an
    unknown parser is an error now. `progress` is called with a line for each step that a model in this
    process takes before its first answer.
    """
    from hermes.config.providers import resolve_model

    settings = config.settings
    target = resolve_model(settings, config.environ, model or settings.model, base_url)
    target = target if label is None else replace(target, label=label)
    if target.is_local:
        from hermes.models.local.chat import LocalChat

        local = LocalChat.open(target.model, config.home, progress)
        return local if budget is None else MeteredChat(local, price_at(settings, target), budget)
    from hermes.models.remote.openai_chat import OpenAIChat

    return OpenAIChat(target, price_at(settings, target), budget)


class MeteredChat(ChatModel):
    """Checks each call against the budget first, and records its usage afterwards."""

    def __init__(self, model: ChatModel, price: PriceSettings | None, budget: Budget) -> None:
        self._model = model
        self.price = price
        self._budget = budget

    @property
    def name(self) -> str:
        return self._model.name

    async def complete(self, request: ChatRequest, on_delta: OnDelta | None = None) -> ChatReply:
        prompt_tokens, longest = estimate_prompt(request.messages, request.tools), request.sampling.max_tokens
        with self._budget.reserve(self.name, self.price, prompt_tokens, longest) as spent:
            reply = await self._model.complete(request, on_delta)
            spent.book(reply.call.usage, reply.call.cost_usd, json.dumps(reply.message.to_json()))
        return reply

    async def close(self) -> None:
        await self._model.close()


_TIMEOUT_S = 10.0
_SHOWN = 8


async def served_models(config: Config, base_url: str) -> list[str]:
    """The names that GET /models of a server lists; ProviderError if it does not answer."""
    from hermes.config.providers import resolve_model
    from hermes.models.remote.endpoint import Endpoint

    endpoint = Endpoint(resolve_model(config.settings, config.environ, "unnamed", base_url))
    try:
        async with asyncio.timeout(_TIMEOUT_S):
            return await endpoint.model_names()
    except TimeoutError:
        raise ProviderError(
            f"{base_url} did not list its models within {_TIMEOUT_S:g} s", "name one with --model"
        ) from None
    finally:
        await endpoint.close()


async def choose_model(config: Config, model: str | None, base_url: str | None) -> str | None:
    """The model to call: the named one; with an address alone, the one that the server there serves.

    UsageError if the server has several and none of them is the configured one.
    """
    if model is not None or base_url is None:
        return model if base_url or model is None else config.settings.model_aliases.get(model, model)
    names = await served_models(config, base_url)
    if len(names) == 1:
        return names[0]
    configured = config.settings.model
    for candidate in (configured, configured.partition("/")[2]):
        if candidate in names:
            return candidate
    if not names:
        raise UsageError(f"{base_url} lists no model", "load one there, or name one with --model")
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    raise UsageError(
        f"{base_url} serves {len(names)} models: {', '.join(names[:_SHOWN])}{more}",
        f"choose one: --model {names[0]}",
    )
