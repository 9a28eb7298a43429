"""Detects a run that makes no progress: it counts results that were of no use since the last useful one.

Each useless result is counted under a category that the caller names; a useful result resets every count. The
guard only counts and compares. Which results are useful, the limits, and the error that ends the run are the
caller's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Stall:
    """A count that has reached its limit."""

    category: str
    count: int


class StallGuard:
    """Counts useless results in a row, by category."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def record_useful(self) -> None:
        self._counts.clear()

    def record_useless(self, category: str) -> None:
        self._counts[category] += 1

    def count(self, category: str) -> int:
        """Useless results of the category since the last useful result."""
        return self._counts[category]

    def find_stall(self, limits: Mapping[str, int]) -> Stall | None:
        """The first category of `limits` whose count has reached its limit; None if there is none."""
        for category, limit in limits.items():
            if self._counts[category] >= limit:
                return Stall(category, self._counts[category])
        return None
