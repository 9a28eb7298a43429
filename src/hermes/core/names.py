"""Names that people read and type: which resemble a mistyped one, and what trained weights are called."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import count

_POLICY_NAME = re.compile(r"[^/\s:]+@(step-\d+|newest)")
SERVICE_SUFFIX = "@service"
"""Ends the name of a policy that a service samples: unlike one on this machine it is not free."""


def nearest(name: str, candidates: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """At most three candidates that resemble `name`, the nearest first."""
    return get_close_matches(name, list(candidates), n=3, cutoff=cutoff)


def did_you_mean(names: Sequence[str], otherwise: str = "") -> str:
    """The hint that names them; `otherwise` where none resembles what was written."""
    return f"did you mean {' or '.join(names)}?" if names else otherwise


def counted(count: int, plural: str) -> str:
    """The number and its noun: '3 trajectories', '1 trajectory', '1 row'."""
    singular = f"{plural[:-3]}y" if plural.endswith("ies") else plural.removesuffix("s")
    return f"{count} {singular if count == 1 else plural}"


def policy_name(run: str, step: int | None, *, at_service: bool = False) -> str:
    """The name of a training run's weights after a step, such as `quickstart-1118@step-7`; for None, of those
    that are the newest when they are asked, while the run goes on."""
    return f"{run}@{'newest' if step is None else f'step-{step}'}{SERVICE_SUFFIX if at_service else ''}"


def is_policy_name(model: str) -> bool:
    """Whether it is a name as `policy_name` makes them."""
    return _POLICY_NAME.fullmatch(model) is not None


def unused_name(stem: str, used_names: Iterable[str]) -> str:
    """The stem, or the first of stem-2, stem-3 … that is not among the used ones."""
    names = set(used_names)
    return next(
        name for number in count(1) if (name := stem if number == 1 else f"{stem}-{number}") not in names
    )
