"""The sequential test errs no more often than stated, however often one looks, and finds what is better."""

from __future__ import annotations

import math
import random
from fractions import Fraction
from statistics import fmean

import pytest

from hermes.policies.sequential import (
    STAKES,
    SequentialDecision,
    SequentialTest,
    fewest_wins,
    run_test,
    spent_error_rate,
)


def promoted(win_rate: float, tie_rate: float, error_rate: float, length: int, seed: int) -> bool:
    """Whether the candidate is ever promoted while comparisons arrive one by one."""
    draw = random.Random(seed)
    test = SequentialTest(error_rate)
    for _ in range(length):
        tie = draw.random() < tie_rate
        test = test.add(0.5 if tie else float(draw.random() < win_rate))
        if test.decision is SequentialDecision.BETTER:
            return True
    return False


@pytest.mark.parametrize(("error_rate", "tie_rate"), [(0.05, 0.0), (0.2, 0.3)])
def test_the_error_rate_holds_with_a_look_after_every_comparison(error_rate: float, tie_rate: float) -> None:
    runs = 600
    wrong = sum(promoted(0.5, tie_rate, error_rate, 100, seed) for seed in range(runs))
    # Three standard deviations above the bound.
    assert wrong / runs <= error_rate + 3 * (error_rate * (1 - error_rate) / runs) ** 0.5
    assert wrong > 0  # and the simulation is able to show an error


def test_twenty_of_twenty_seeds_with_random_ratings_promote_nothing() -> None:
    assert not any(promoted(0.5, 0.0, 0.01, 60, seed) for seed in range(20))


def test_what_is_better_is_promoted() -> None:
    assert sum(promoted(0.8, 0.1, 0.01, 60, seed) for seed in range(20)) >= 18


def test_the_mean_wealth_of_a_fair_game_is_one() -> None:
    """Exactly: over all 2ⁿ sequences of wins and losses, in fractions."""
    length = 8
    stakes = [Fraction(round(stake * 10), 10) for stake in STAKES]
    total = Fraction(0)
    for bits in range(2**length):
        for stake in stakes:
            wealth = Fraction(1)
            for turn in range(length):
                wealth *= 1 + stake if bits >> turn & 1 else 1 - stake
            total += wealth
    assert total == 2**length * len(stakes)
    sequence = [1.0, 0.0, 1.0, 1.0, 0.5]
    wealth = sum((1 + s) ** 3 * (1 - s) for s in STAKES) / len(STAKES)
    assert fmean(map(math.exp, run_test(sequence).better)) == pytest.approx(wealth)


def test_losing_is_worse_and_a_decision_stays() -> None:
    assert run_test([0.0] * 20).decision is SequentialDecision.WORSE
    assert run_test([1.0] * 20 + [0.0] * 40).decision is SequentialDecision.BETTER
    assert run_test([]).decision is SequentialDecision.UNDECIDED


def test_how_many_comparisons_are_needed_at_least() -> None:
    for error_rate in (0.05, 0.01):
        count = fewest_wins(error_rate)
        assert run_test([1.0] * count, error_rate).decision is SequentialDecision.BETTER
        assert run_test([1.0] * (count - 1), error_rate).decision is SequentialDecision.UNDECIDED


def test_attempts_share_one_error_rate() -> None:
    assert sum(spent_error_rate(0.05, attempt) for attempt in range(1, 10_000)) <= 0.05
    with pytest.raises(ValueError, match="not between 0 and 1"):
        SequentialTest(0.0)
    with pytest.raises(ValueError, match="won, lost or tied"):
        SequentialTest().add(0.7)
