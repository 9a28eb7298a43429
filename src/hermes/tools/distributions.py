"""Toolset distributions: each toolset of a sample is drawn independently, with its own probability.

A draw depends only on a hash of the distribution's name, the toolset and the seed parts. So the toolsets of a
sample are the same in every process, order, platform and version, and can be recomputed from the trajectory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Mapping
from types import MappingProxyType

from hermes.errors import ConfigError, UsageError
from hermes.tools import registry

Percents = Mapping[str, int]
"""toolset → chance in percent."""


def _uniform(percent: int, names: str) -> dict[str, int]:
    return dict.fromkeys(names.split(), percent)


_SIX = "web vision image_gen terminal file browser"

DISTRIBUTIONS: Mapping[str, Percents] = MappingProxyType(
    {
        "default": _uniform(100, _SIX),
        "balanced": _uniform(50, _SIX),
        "minimal": {"web": 100},
        "terminal_only": _uniform(100, "terminal file"),
        "terminal_web": _uniform(100, "terminal file web"),
        "browser_only": {"browser": 100},
        "browser_use": {"browser": 100, "web": 80, "vision": 70},
        "browser_tasks": {"browser": 97, "terminal": 15, "vision": 12},
        "terminal_tasks": {
            "terminal": 97,
            "file": 97,
            "web": 97,
            "browser": 75,
            "vision": 50,
            "image_gen": 10,
        },
        "mixed_tasks": {
            "browser": 92,
            "terminal": 92,
            "file": 92,
            "web": 35,
            "vision": 15,
            "image_gen": 15,
        },
        "development": {"terminal": 80, "file": 80, "web": 30, "vision": 10},
        "research": {"web": 90, "browser": 70, "vision": 50, "terminal": 10},
        "reasoning": {"web": 90, "file": 60, "terminal": 20},
        "science": {"web": 94, "terminal": 94, "file": 94, "vision": 65, "browser": 50, "image_gen": 15},
        "safe": {"web": 80, "browser": 70, "vision": 60, "image_gen": 60},
        "creative": {"image_gen": 90, "vision": 90, "web": 30},
        "image_gen": {"image_gen": 90, "vision": 90, "web": 55, "terminal": 45},
    }
)


def available(configured: Mapping[str, Percents]) -> dict[str, Percents]:
    """The built-in and the configured distributions, all checked; a configured one replaces its namesake."""
    for name, percents in configured.items():
        _check(name, percents)
    return {**DISTRIBUTIONS, **configured}


def resolve(name: str, configured: Mapping[str, Percents]) -> Percents:
    """The percentages of one distribution; UsageError if there is none of that name."""
    table = {**DISTRIBUTIONS, **configured}
    if name not in table:
        raise registry.unknown("distribution", name, table)
    if name in configured:
        _check(name, configured[name])
    return table[name]


def sample(
    name: str,
    *,
    seed_parts: tuple[str | int, ...],
    configured: Mapping[str, Percents],
    without: Collection[str] = (),
) -> tuple[str, ...]:
    """The toolsets one sample gets, in the distribution's order.

    `seed_parts` identifies the sample, such as (seed, run, row, sample index); "1" and 1 are different.
    `without` are toolsets that are never drawn; the draws of the others do not change. If none is drawn, the
    most probable toolset (the first of them) is used, so a sample always has one.
    """
    percents = {
        toolset: percent for toolset, percent in resolve(name, configured).items() if toolset not in without
    }
    drawn = tuple(
        toolset for toolset, percent in percents.items() if _draw(percent, name, toolset, seed_parts)
    )
    return drawn or tuple(sorted(percents, key=lambda toolset: -percents[toolset])[:1])


def _draw(percent: int, *parts: object) -> bool:
    digest = hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") * 100 < percent << 64


def _check(name: str, percents: Percents) -> None:
    where = f"distributions.{name}"
    if not percents or not any(percents.values()):
        raise ConfigError(f"{where} gives no toolset a chance", "give one a percentage above 0")
    for toolset, percent in percents.items():
        try:
            registry.check_toolset(toolset)
        except UsageError as error:
            raise ConfigError(f"{where}: {error.message}", error.hint) from error
        if not 0 <= percent <= 100:
            raise ConfigError(f"{where}.{toolset} is {percent}", "a percentage is between 0 and 100")
