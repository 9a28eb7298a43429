"""Rewards for numeric answers: the final number of a response, compared exactly.

Numbers are rationals, so 0.5 equals 1/2 and 1,250 equals 1250. Only the final number counts, so that listing
candidates is worth one guess. A number with too many digits or too large an exponent is not read as one, so
that it costs nothing to compare.
"""

from __future__ import annotations

from fractions import Fraction

from hermes.batch.grading import numbers
from hermes.batch.grading.answers import without_latex
from hermes.envs.rewards.result import GraderError, RewardResult, failed, passed


def numeric(response: str, expected: str, *, tolerance: float = 0.0) -> RewardResult:
    """1 if the final number of the response is the expected one, within a relative tolerance."""
    expected_number = read_number(expected)
    if expected_number is None:
        raise GraderError(f"the expected answer '{expected}' is not a number")
    number = numbers.final_number(without_latex(response))
    if number is None:
        return failed("the answer commits to no number")
    if abs(number - expected_number) <= abs(expected_number) * Fraction(tolerance):
        return passed()
    return failed(f"{_abbreviated(number)} is not {expected}")


def read_number(text: str) -> Fraction | None:
    """The number that the whole text spells; None if it does not spell one."""
    return numbers.read_number(without_latex(text))


def _abbreviated(number: Fraction) -> str:
    text = str(number)
    return text if len(text) <= 40 else f"{text[:40]} …"
