"""Which model a server means when only its address is named: the server's own list says."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from hermes.errors import ProviderError, UsageError

if TYPE_CHECKING:
    from hermes.config.load import Config

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
        return model
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
