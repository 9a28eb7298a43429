"""Rewards for answers that are numbers: the one number an answer ends with, compared exactly.

Numbers are rationals, so 0.5 equals 1/2 and 1,250 equals 1250. Only the number the answer commits to
counts, so that listing candidates is worth one guess. A text that spells a monstrous number is no
number, and costs nothing to look at.
"""

from __future__ import annotations

import re
from fractions import Fraction

from hermes.envs.rewards.result import GraderError, RewardResult, failed, passed
from hermes.envs.rewards.text import normalised

_NUMBER = re.compile(
    r"[-−]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:e[-+]?\d{1,3}(?!\d))?(?:/\d+)?", re.ASCII
)
_MARKS = re.compile(r"####|\\boxed\s*\{|\b(?:final\s+)?answer(?:\s+is|\s*[:=])", re.IGNORECASE)
_MAX_DIGITS = 400
_MAX_EXPONENT = 300


def final_number(text: str) -> Fraction | None:
    """The number the text commits to: the first after its last answer mark, or else its last; None: none."""
    marks = list(_MARKS.finditer(text))
    if marks:
        return next(iter(_numbers(text[marks[-1].end() :])), None)
    found = _numbers(text)
    return found[-1] if found else None


def numeric(answer: str, expected: str, *, tolerance: float = 0.0) -> RewardResult:
    """1 if the number the answer commits to is the expected one, within a relative tolerance."""
    wanted = read_number(expected)
    if wanted is None:
        raise GraderError(f"the expected answer '{expected}' is not a number")
    given = final_number(answer)
    if given is None:
        return failed("the answer holds no number")
    if abs(given - wanted) <= abs(wanted) * Fraction(tolerance):
        return passed()
    return failed(f"{_shown(given)} is not {expected}")


def read_number(text: str) -> Fraction | None:
    """A text that is one number and nothing else; None if it is not."""
    plain = normalised(text).replace("−", "-")
    return _value(plain) if _NUMBER.fullmatch(plain) else None


def _numbers(text: str) -> list[Fraction]:
    found = (_value(match.group()) for match in _NUMBER.finditer(normalised(text)))
    return [number for number in found if number is not None]


def _value(spelled: str) -> Fraction | None:
    """None for what is no number, or one too large to be meant."""
    plain = spelled.replace(",", "").replace("−", "-")
    number, _, divisor = plain.partition("/")
    exponent = number.partition("e")[2]
    if len(plain) > _MAX_DIGITS or abs(int(exponent or 0)) > _MAX_EXPONENT or (divisor and not int(divisor)):
        return None
    return Fraction(number) / int(divisor or 1)


def _shown(number: Fraction) -> str:
    text = str(number)
    return text if len(text) <= 40 else f"{text[:40]} …"
