"""Reads the usage of a call from a response, in the formats that servers use.

The five counters are disjoint. Servers report cached, written and thinking tokens as part of the
prompt or completion count, so those parts are subtracted here; where a server's own total shows that
it counts thinking separately from the completion, they are not. Without any count the usage is None.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hermes.config.providers import profiles
from hermes.config.secrets import can_be_secret
from hermes.config.settings import LOCAL, PriceSettings
from hermes.core import JSONObject, Message, Usage
from hermes.core.names import SERVICE_SUFFIX, is_policy_name
from hermes.models.fields import as_count, as_object
from hermes.safety.access import leads_to_loopback

if TYPE_CHECKING:
    from hermes.config.providers import ModelTarget
    from hermes.config.settings import Settings
    from hermes.models.base import ChatModel

FREE = PriceSettings(input=0.0, output=0.0)
"""The price of a model on this machine."""
_BYTES_PER_TOKEN = 3
"""Below what tokenizers reach on prose and code, so that an estimate is seldom too low."""
_TOKENS_PER_IMAGE = 1000


def read_usage(raw: JSONObject) -> Usage | None:
    """The usage of a response, or None if it has none."""
    data = as_object(raw.get("usage"))
    prompt, completion = as_count(data.get("prompt_tokens")), as_count(data.get("completion_tokens"))
    if not prompt and not completion:
        return None
    details = {**data, **as_object(data.get("prompt_tokens_details"))}
    cached = _first_count(details, "cached_tokens", "prompt_cache_hit_tokens", "cache_read_input_tokens")
    written = _first_count(details, "cache_write_tokens", "cache_creation_input_tokens")
    thinking = _first_count({**data, **as_object(data.get("completion_tokens_details"))}, "reasoning_tokens")
    separate = thinking and as_count(data.get("total_tokens")) == prompt + completion + thinking
    return Usage(
        input_tokens=max(0, prompt - cached - written),
        cached_input_tokens=cached,
        cache_write_tokens=written,
        output_tokens=completion if separate else max(0, completion - thinking),
        reasoning_tokens=thinking,
    )


def reported_cost_usd(raw: JSONObject) -> float | None:
    """The cost that the server reports (OpenRouter does), or None."""
    cost = as_object(raw.get("usage")).get("cost")
    return float(cost) if isinstance(cost, int | float) and not isinstance(cost, bool) else None


def estimate_tokens(text: str) -> int:
    """A high estimate of a text's tokens, for reserving budget before the server has counted them."""
    return -(-len(text.encode("utf-8", "surrogatepass")) // _BYTES_PER_TOKEN)


def estimate_prompt(messages: Sequence[Message], tools: Sequence[JSONObject]) -> int:
    """The same for a whole request. Each image counts as a fixed number of tokens."""
    images = sum(len(message.images) for message in messages)
    texts = [replace(message, images=()).to_json() for message in messages]
    return estimate_tokens(json.dumps([texts, list(tools)])) + images * _TOKENS_PER_IMAGE


def _first_count(data: JSONObject, *names: str) -> int:
    return next((count for name in names if (count := as_count(data.get(name)))), 0)


def price_of(settings: Settings, model: str) -> PriceSettings | None:
    """The price of `model` (provider/name); `prices` may be keyed by that or by the name alone.

    What runs on this machine costs nothing: the bundled model, policies, providers on loopback without a key.
    """
    provider, _, name = model.partition("/")
    stated = settings.prices.get(model) or settings.prices.get(name)
    return stated or (FREE if is_policy_name(model) or _is_local(settings, provider) else None)


def price_at(settings: Settings, target: ModelTarget) -> PriceSettings | None:
    """As `price_of`; any address on loopback that takes no key, or a word for one, costs nothing either."""
    price = price_of(settings, target.name)
    has_key = target.api_key is not None and can_be_secret(target.api_key)
    is_free = price is None and not has_key and leads_to_loopback(target.base_url)
    return FREE if is_free and not target.name.endswith(SERVICE_SUFFIX) else price


def price_of_model(settings: Settings, model: ChatModel) -> PriceSettings | None:
    """The price that the model was opened with, which knows its address; else that of its name."""
    return getattr(model, "price", None) or price_of(settings, model.name)


def _is_local(settings: Settings, provider: str) -> bool:
    profile = profiles(settings, {}).get(provider)
    if profile is None or profile.key_env is not None:
        return False
    return profile.base_url == LOCAL or leads_to_loopback(profile.base_url)


def cost_usd(usage: Usage, price: PriceSettings | None) -> float | None:
    """None if the price is unknown. Thinking is billed as output."""
    if price is None:
        return None
    cached = price.input if price.cached_input is None else price.cached_input
    written = price.input if price.cache_write is None else price.cache_write
    per_million = (
        usage.input_tokens * price.input
        + usage.cached_input_tokens * cached
        + usage.cache_write_tokens * written
        + usage.completion * price.output
    )
    return per_million / 1_000_000
