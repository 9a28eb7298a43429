"""Settings whose values are names that a higher package knows: toolsets, sandboxes, addresses to allow.

The settings model stands below those packages and accepts any text there; `hermes config set` refuses a name
that does not exist before it is written. Fields of RL runs (`rl.values`, `rl.unlock`) are not among them:
which exist depends on the environment, so `hermes rl start` checks them. Providers are not either: a model
may be set before its provider; `note_on_model` is the note about that.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from hermes.core import JSON
from hermes.core.names import did_you_mean, nearest
from hermes.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from hermes.config.load import Config


def check_names(path: Sequence[str], value: JSON) -> None:
    """ConfigError if the value at this key of the settings names something that does not exist."""
    match tuple(path), value:
        case ("sandbox",), {"backend": str() as name}:
            _check_backend(name)
        case ("sandbox", "backend"), str() as name:
            _check_backend(name)
        case ("sandbox", "network_allow"), list() as addresses:
            _check_addresses(addresses)
        case ("toolsets",) | ("providers", _, "toolsets"), list() as names:
            _check_toolsets(path, names)
        case ("distributions", _), dict() as percents:
            _check_toolsets(path, percents)
        case ("distributions", _, name), _:
            _check_toolsets(path[:2], [name])


def note_on_model(config: Config, key: str) -> str | None:
    """A note if the model that was set names a provider that does not exist."""
    from hermes.config.providers import resolve_model

    settings = config.settings
    models = {
        "model": settings.model,
        "media.vision_model": settings.media.vision_model,
        "media.image_model": settings.media.image_model,
    }
    if (model := models.get(key)) is None:
        return None
    try:
        resolve_model(settings, config.environ, model)
    except UsageError as error:
        return f"{error.message}; {error.hint}"
    except ConfigError:  # the key is not set yet; the first request says so
        return None
    return None


def _check_backend(name: str) -> None:
    from hermes.sandbox.open import sandbox_names

    names = ["auto", *sandbox_names()]
    if name not in names:
        raise ConfigError(
            f"sandbox.backend: there is no sandbox '{name}'; there are: {', '.join(names)}",
            did_you_mean(nearest(name, names), "others are plug-ins; install it first"),
        )


def _check_addresses(addresses: Sequence[JSON]) -> None:
    from hermes.sandbox.network.plan import HOST, route_plan

    route_plan([address for address in addresses if isinstance(address, str) and address != HOST], ())


def _check_toolsets(path: Sequence[str], names: Sequence[JSON] | Mapping[str, JSON]) -> None:
    from hermes.tools.registry import check_toolset, toolset_names

    for name in names:
        try:
            if isinstance(name, str):
                check_toolset(name)
        except UsageError as error:
            listing = ", ".join(toolset_names())
            raise ConfigError(
                f"{'.'.join(path)}: {error.message}; there are: {listing}", error.hint
            ) from error
