"""The cost of a call. Prices come from the settings only; a price that is not set is unknown, never zero."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hermes.core import Usage

if TYPE_CHECKING:
    from hermes.config.settings import PriceSettings, Settings


def price_of(settings: Settings, model: str) -> PriceSettings | None:
    """The price of `model` (provider/name); `prices` may be keyed by that or by the name alone.

    Bundled models run in this process, and cost nothing.
    """
    from hermes.config.providers import BUNDLED_PROVIDER
    from hermes.config.settings import PriceSettings

    provider, _, name = model.partition("/")
    free = PriceSettings(input=0.0, output=0.0) if provider == BUNDLED_PROVIDER else None
    return settings.prices.get(model) or settings.prices.get(name) or free


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
