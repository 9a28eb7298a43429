"""Which toolsets a conversation offers when several places have an opinion."""

from __future__ import annotations

from collections.abc import Sequence

from hermes.config.load import Config, SettingOrigin
from hermes.config.providers import profiles
from hermes.tools.registry import check_toolset


def choose_toolsets(
    config: Config, model: str, wish: str | None, own: Sequence[str] | None = None
) -> tuple[str, ...]:
    """The wish ('a,b' or 'none'), else the configured ones, else the model's own, else the default.

    `own`: what this very model was trained with. Else its provider may have an opinion, where its models are
    small: they are lost among many tools.
    """
    if wish is not None:
        names = [name.strip() for name in wish.split(",") if name.strip()]
        return () if names == ["none"] else tuple(check_toolset(name) for name in names)
    provider = profiles(config.settings, config.environ).get(model.partition("/")[0])
    if own is None and provider is not None:
        own = provider.toolsets
    if own is None or config.origins.get("toolsets") is not SettingOrigin.DEFAULT:
        own = config.settings.toolsets
    return tuple(check_toolset(name) for name in own)
