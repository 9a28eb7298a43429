"""A sequential test of paired comparisons: is the candidate better than the current policy?

Each comparison is a win (1), a loss (0) or a tie (½). Under the null hypothesis that the candidate is not
better, the expected result of each comparison, whatever came before, is at most ½. A gambler who stakes the
share λ of their wealth on every next win multiplies it by 1 + λ(2x − 1), and under the null hypothesis cannot
expect to gain. The wealth of several gamblers with different λ, averaged, is an e-process: by Ville's
inequality it ever reaches 1/α with a probability of at most α, however often one looks and whenever one
stops. So 'promote as soon as the wealth is 1/α' promotes a candidate that is not better with a probability of
at most α.

The same wealth with wins and losses swapped tests whether the candidate is worse. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

STAKES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
DEFAULT_ERROR_RATE = 0.01


class SequentialDecision(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class SequentialTest:
    """The state after some comparisons; `add` gives the next one."""

    error_rate: float = DEFAULT_ERROR_RATE
    wins: int = 0
    losses: int = 0
    ties: int = 0
    better: tuple[float, ...] = field(default=(0.0,) * len(STAKES))
    """Logarithm of the wealth of each gambler who bets on wins."""
    worse: tuple[float, ...] = field(default=(0.0,) * len(STAKES))
    """Logarithm of the wealth of each gambler who bets on losses."""
    highest: float = 1.0
    """The largest wealth so far of those who bet on wins."""
    highest_worse: float = 1.0

    def __post_init__(self) -> None:
        if not 0 < self.error_rate < 1:
            raise ValueError(f"an error rate of {self.error_rate:g} is not between 0 and 1")

    def add(self, result: float) -> SequentialTest:
        """`result`: 1 for a win, 0 for a loss, ½ for a tie."""
        if result not in (0, 0.5, 1):
            raise ValueError(f"a comparison is won, lost or tied, not {result!r}")
        gain = 2 * result - 1
        better = tuple(w + math.log1p(stake * gain) for w, stake in zip(self.better, STAKES, strict=True))
        worse = tuple(w + math.log1p(-stake * gain) for w, stake in zip(self.worse, STAKES, strict=True))
        return SequentialTest(
            self.error_rate,
            self.wins + (result == 1),
            self.losses + (result == 0),
            self.ties + (result == 0.5),
            better,
            worse,
            max(self.highest, _mean_wealth(better)),
            max(self.highest_worse, _mean_wealth(worse)),
        )

    @property
    def count(self) -> int:
        return self.wins + self.losses + self.ties

    @property
    def decision(self) -> SequentialDecision:
        """BETTER or WORSE once the wealth has ever reached 1/error_rate; it stays so."""
        threshold = 1 / self.error_rate
        if self.highest >= threshold:
            return SequentialDecision.BETTER
        return SequentialDecision.WORSE if self.highest_worse >= threshold else SequentialDecision.UNDECIDED


def run_test(results: Iterable[float], error_rate: float = DEFAULT_ERROR_RATE) -> SequentialTest:
    """Over all results, in their order; it does not stop early, but its decision is that of the first time
    that the threshold was reached."""
    test = SequentialTest(error_rate)
    for result in results:
        test = test.add(result)
    return test


def fewest_wins(error_rate: float = DEFAULT_ERROR_RATE) -> int:
    """Comparisons that are needed even if all are won: with fewer, nothing can be promoted."""
    count = 0
    test = SequentialTest(error_rate)
    while test.decision is not SequentialDecision.BETTER:
        test, count = test.add(1), count + 1
    return count


def spent_error_rate(error_rate: float, attempt: int) -> float:
    """The share of the error rate for the n-th candidate (from 1) against the same policy.

    α/(n(n+1)) sums to α over all attempts: trying again does not raise the chance of a wrong promotion.
    """
    return error_rate / (attempt * (attempt + 1))


def _mean_wealth(logs: Iterable[float]) -> float:
    values = list(logs)
    return sum(math.exp(value) for value in values) / len(values)
