"""Which toolsets a conversation offers: command line, configuration, trained run or provider.

And whether its system prompt lists every skill, which is 40 lines that a small model makes little of.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hermes.config.load import Config, SettingOrigin
from hermes.config.providers import BUNDLED_PROVIDER, profiles
from hermes.tools.registry import check_toolset

_FOR_A_PERSON = frozenset({"skills", "session_search", "memory", "clarify"})
"""The default toolsets that help only in a conversation. The list of skills alone adds 40 lines to every
system prompt."""


_SMALL_BELOW = 10e9
"""Parameters."""
_SIZE = re.compile(r"(?<![\d.])(\d+(?:\.\d+)?)([bm])(?![a-z0-9])", re.IGNORECASE)
_UNITS = {"b": 1e9, "m": 1e6}


def lists_all_skills(config: Config, model: str) -> bool:
    """Whether the prompt has a line for each skill; otherwise one says how to search them."""
    if config.settings.skill_list != "auto":
        return config.settings.skill_list == "all"
    return not _is_small(model)


def _is_small(model: str) -> bool:
    """By the largest size that the name states; a name without one is a large model's, but the bundled's."""
    sizes = [float(number) * _UNITS[unit.lower()] for number, unit in _SIZE.findall(model)]
    return max(sizes) < _SMALL_BELOW if sizes else model.startswith(f"{BUNDLED_PROVIDER}/")


def choose_toolsets(
    config: Config,
    model: str,
    flag: str | None,
    trained_with: Sequence[str] | None = None,
    *,
    unattended: bool = False,
) -> tuple[str, ...]:
    """The flag's ('a,b' or 'none'), else the configured ones, else the model's, else the default.

    The model's toolsets are those it was trained with (`trained_with`), else those of its provider's profile,
    which a provider of small models sets because they cannot handle many tools. `unattended`: a batch has no
    default toolsets that need a person.
    """
    if flag is not None:
        names = [name.strip() for name in flag.split(",") if name.strip()]
        return () if names == ["none"] else tuple(check_toolset(name) for name in names)
    provider = profiles(config.settings, config.environ).get(model.partition("/")[0])
    toolsets = trained_with
    if toolsets is None and provider is not None:
        toolsets = provider.toolsets
    is_default = config.origins.get("toolsets") is SettingOrigin.DEFAULT
    if toolsets is None or not is_default:
        left_out = _FOR_A_PERSON if unattended and is_default else frozenset()
        toolsets = tuple(name for name in config.settings.toolsets if name not in left_out)
    return tuple(check_toolset(name) for name in toolsets)
