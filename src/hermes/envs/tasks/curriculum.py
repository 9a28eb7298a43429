"""A curriculum over levels of difficulty: harder tasks when those of the present level succeed. Pure.

Scores are recorded as groups end; the level changes only between training steps, so it does not depend on the
order in which the groups of a batch arrived. It never falls: a policy that has learned easy tasks keeps
seeing them, mixed with the harder ones.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence

_THRESHOLD = 0.6
"""Mean score of the highest level at which the next level opens."""
_LEAST_GROUPS = 4
"""Groups of the highest level that the mean is taken of."""


class Curriculum:
    def __init__(self, levels: int, level: int = 0) -> None:
        """`levels`: how many there are. `level`: the highest that is open, counted from 0."""
        self._levels = levels
        self.level = min(level, levels - 1)
        self._means: list[float] = []
        """Of groups of the highest open level, since it was opened."""

    def record(self, level: int, scores: Sequence[float]) -> None:
        """A group of this level has these scores, between 0 and 1."""
        if level == self.level:
            self._means.append(statistics.fmean(scores))

    def advance(self) -> bool:
        """Between two steps: opens the next level if the highest open one succeeds; whether it did."""
        succeeds = len(self._means) >= _LEAST_GROUPS and statistics.fmean(self._means) >= _THRESHOLD
        if not succeeds or self.level + 1 >= self._levels:
            if len(self._means) >= 4 * _LEAST_GROUPS:
                self._means.clear()  # the policy has changed since
            return False
        self.level += 1
        self._means.clear()
        return True
