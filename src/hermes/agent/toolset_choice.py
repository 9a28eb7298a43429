"""Which toolsets a conversation offers when several places have an opinion."""

from __future__ import annotations

from hermes.config.load import Config, Origin
from hermes.config.providers import profiles
from hermes.tools.registry import check_toolset


def choose_toolsets(config: Config, model: str, wish: str | None) -> tuple[str, ...]:
    """The wish ('a,b' or 'none'), else the configured ones, else the provider's, else the default.

    A provider has an opinion where its models are small: they are lost among many tools.
    """
    if wish is not None:
        names = [name.strip() for name in wish.split(",") if name.strip()]
        return () if names == ["none"] else tuple(check_toolset(name) for name in names)
    provider = profiles(config.settings, config.environ).get(model.partition("/")[0])
    own = provider.toolsets if provider else None
    if own is not None and config.origins.get("toolsets") is Origin.DEFAULT:
        return own
    return tuple(check_toolset(name) for name in config.settings.toolsets)
