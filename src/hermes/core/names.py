"""Names that resemble a mistyped one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches


def nearest(name: str, candidates: Iterable[str], *, cutoff: float = 0.6) -> list[str]:
    """At most three candidates that resemble `name`, the nearest first."""
    return get_close_matches(name, list(candidates), n=3, cutoff=cutoff)


def did_you_mean(names: Sequence[str], otherwise: str = "") -> str:
    """The hint that names them; `otherwise` where none resembles what was written."""
    return f"did you mean {' or '.join(names)}?" if names else otherwise
