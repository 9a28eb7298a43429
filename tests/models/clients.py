"""The real clients, opened on a fake provider's socket."""

from __future__ import annotations

from typing import Any

import pytest

from hermes.config.providers import ModelTarget
from hermes.config.settings import PriceSettings, ProviderSettings
from hermes.core import JSONObject, Message, Sampling
from hermes.errors import ProviderError
from hermes.models.base import ChatRequest, OnDelta, StreamDelta
from hermes.models.budget import Budget
from hermes.models.remote.openai_chat import OpenAIChat
from hermes.models.tokens.completions import CompletionModel
from tests.fakes.provider import FakeProvider

PRICE = PriceSettings(input=1.0, output=10.0, cached_input=0.5, cache_write=2.0)
TOOL: JSONObject = {
    "name": "todo",
    "description": "keeps a list",
    "parameters": {"type": "object", "properties": {}},
}


def target_for(base_url: str, *, key: str | None = None, model: str = "fake", **settings: Any) -> ModelTarget:
    profile = ProviderSettings(base_url=base_url, key_env="FAKE_API_KEY" if key else None, **settings)
    return ModelTarget("lab", model, base_url, profile.key_env, key, profile)


def chat_on(
    provider: FakeProvider,
    *,
    price: PriceSettings | None = None,
    budget: Budget | None = None,
    **target: Any,
) -> OpenAIChat:
    return OpenAIChat(target_for(provider.base_url, **target), price, budget)


def completions_on(provider: FakeProvider, *, budget: Budget | None = None, **target: Any) -> CompletionModel:
    return CompletionModel(target_for(provider.base_url, **target), PRICE, budget)


def asking(text: str = "hello", **fields: Any) -> ChatRequest:
    return ChatRequest((Message.user(text),), **fields)


def limited_to(max_tokens: int) -> Sampling:
    return Sampling(max_tokens=max_tokens)


async def failing(chat: OpenAIChat, on_delta: OnDelta | None = None, **fields: Any) -> ProviderError:
    with pytest.raises(ProviderError) as error:
        await chat.complete(asking(**fields), on_delta)
    return error.value


def ignore(delta: StreamDelta) -> None:
    """Listens, so that the answer is streamed, and does nothing with it."""


both_ways = pytest.mark.parametrize("on_delta", [None, ignore], ids=["whole", "streamed"])
