"""Names that resemble a mistyped one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from itertools import count


def nearest(name: str, candidates: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """At most three candidates that resemble `name`, the nearest first."""
    return get_close_matches(name, list(candidates), n=3, cutoff=cutoff)


def did_you_mean(names: Sequence[str], otherwise: str = "") -> str:
    """The hint that names them; `otherwise` where none resembles what was written."""
    return f"did you mean {' or '.join(names)}?" if names else otherwise


def unused_name(stem: str, taken: Iterable[str]) -> str:
    """The stem, or the first of stem-2, stem-3 … that is not taken."""
    names = set(taken)
    return next(
        name for number in count(1) if (name := stem if number == 1 else f"{stem}-{number}") not in names
    )
