"""Numbers in texts: how they are written, and the one that an answer commits to.

The number that an answer commits to is the first after its last mark (`####`, `Answer:`), or else the last.
It has to be the value itself: an operand, a bound (`more than 42`), one of several (`41 or 42`) and what is
denied (`not 42`) are no answer. The words that deny are English. Nothing is evaluated here.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

NUMBER = re.compile(
    r"[-+−]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:e[-+]?\d{1,3}(?!\d))?(?:/\d+)?", re.ASCII
)
"""In the text that `answers.without_latex` returns."""
MARK = re.compile(r"####|\\boxed\s*\{|\b(?:final\s+)?answer(?:\s+is\b|\s*[:=])", re.IGNORECASE)
"""An answer writes one of these before its result."""
_TAG = re.compile(r"</?[a-z][\w-]*>")
_UNIT_POWER = re.compile(r"(?<=[a-z])\s?\^\s?\{?[-+]?\d\}?")
"""As in `42 cm^2`."""
_STANDING_ALONE = re.compile(rf"(?<![\w.])(?:{NUMBER.pattern})(?!\w*[\d_])", re.ASCII)
"""No part of a name, a version or another number, as in `H2O`, `1.4.2` and `x_2`."""
_DENIED = re.compile(
    r"(?:\b(?:not|never|cannot)|n['’]t)(?:\s+(?!but\b)[a-z]+){0,4}[\s=]*$"
    r"|\b(?:n?or|than|least|most)\s+$|\d\s+(?:and|to)\s+$"
    r"|(?:\S[ \t]*(?<![-=<>])[<>]|!|[≤≥≠]|\\(?:ne|neq|le|leq|ge|geq|lt|gt))\s*=?\s*$"
)
_OPERATOR_BEFORE = re.compile(
    r"[\d)\]}!]\s*[-+*/^]\s*$|\d:$|[×·÷√^±]\W*$|\\[a-z]+\W*$|\b(?:sqrt|log|ln|exp|sin|cos|tan)\W*$"
)
_MORE_AFTER = re.compile(
    r"\s*(?:\^|\*+\s*[\d(\\]|[×·÷√±π_]|[-+/=:,]\s*[-+]?[\d(\\]|(?:and|to)\s+[-+]?\d|or\b|\\[a-z])"
    r"|[xyzi](?![a-z])|!+\s*[-+*/^=]|\s+(?:is\s+(?:not|wrong|incorrect|too)\b|isn['’]t)"
)
_LONE = re.compile(
    r"[\s*_`~≈$€£:\"'(\[]*(?:[a-z]\s*[:=][\s*_$]*)?"
    rf"({NUMBER.pattern})"
    r"(?:\s+°?[mgshlcfknjwva](?:\s?\^\s?\{?[23]\}?)?)?[\s*_`~$€£.,;:?\"')\]]*",
    re.IGNORECASE | re.ASCII,
)
_MAX_DIGITS = 400
_MAX_EXPONENT = 300

_DIGIT = re.compile(r"[^\W\D]")
_ONE_CHARACTER = re.compile("(?<!\\^)(?:([0-9]+)[ \u00a0\u2009\u202f]?)?([¼½¾⅐-⅞])")
_RAISED = re.compile("[⁰¹²³⁴-⁹]+")
_LOWERED = re.compile("[₀-₉]+")
_GROUPS = re.compile("(?<![0-9.,])[1-9][0-9]{0,2}(?:[\u00a0\u2007\u2009\u202f][0-9]{3})+(?![0-9])")
_SPACED_GROUPS = re.compile("(?<![0-9.,])[1-9][0-9]{0,2}(?: [0-9]{3})+(?![0-9])")
_MIXED = re.compile("(?<![0-9.,/^])([0-9]{1,9}) ([0-9]{1,9})/([0-9]{1,9})(?![0-9.,])")


def in_ascii(text: str) -> str:
    """The digits of every script, fractions and powers that are one character, and the typographic spaces
    within a number, as they are typed: `1½` is `1 1/2`, and `10²` is `10^{2}` and not 102."""
    if text.isascii():
        return text
    text = _DIGIT.sub(lambda digit: str(unicodedata.decimal(digit[0])), text)
    text = text.replace("\u066b", ".").replace("\u066c", ",")
    text = _GROUPS.sub(lambda number: re.sub(r"\s", "", number[0]), text)
    text = _ONE_CHARACTER.sub(
        lambda match: f"{match[1]} {_compatible(match[2])}" if match[1] else _compatible(match[2]), text
    )
    text = _RAISED.sub(lambda power: f"^{{{_compatible(power[0])}}}", text)
    return _LOWERED.sub(lambda index: f"_{{{_compatible(index[0])}}}", text)


def _compatible(text: str) -> str:
    return unicodedata.normalize("NFKC", text).replace("\u2044", "/")


def without_spaces(text: str) -> str:
    """`42 000` as 42000. Only for answers: in what is expected it may be two numbers."""
    return _SPACED_GROUPS.sub(lambda number: number[0].replace(" ", ""), text)


def without_mixed(text: str) -> str:
    """`1 1/2` as 3/2."""
    return _MIXED.sub(_improper, text)


def _improper(match: re.Match[str]) -> str:
    whole, numerator, denominator = map(int, match.groups())
    return f"{whole * denominator + numerator}/{denominator}" if numerator < denominator else match[0]


def read_number(spelled: str) -> Fraction | None:
    """The number that the normalised text spells; None if it spells none, divides by zero or is too long."""
    if len(spelled) > _MAX_DIGITS or not NUMBER.fullmatch(spelled):
        return None
    number, _, divisor = spelled.replace(",", "").replace("−", "-").partition("/")
    exponent = number.partition("e")[2]
    if abs(int(exponent or 0)) > _MAX_EXPONENT or (divisor and not int(divisor)):
        return None
    return Fraction(number) / int(divisor or 1)


def final_number(text: str) -> Fraction | None:
    """The number that the text without LaTeX commits to; None if it commits to none."""
    text = _readable(text)
    marks = list(MARK.finditer(text))
    numbers = list(_STANDING_ALONE.finditer(text, marks[-1].end() if marks else 0))
    if not numbers:
        return None
    number = numbers[0 if marks else -1]
    before, after = text[: number.start()], text[number.end() :]
    if _DENIED.search(before) or _OPERATOR_BEFORE.search(before) or _MORE_AFTER.match(after):
        return None
    return read_number(number.group())


def lone_number(text: str) -> Fraction | None:
    """The number of a text without LaTeX that has nothing beside it but punctuation, a name of one letter
    (`x: 17`) or a unit of one (`17 L`, `17 m²`); None if it has anything else."""
    match = _LONE.fullmatch(without_spaces(text))
    return read_number(match[1]) if match else None


def is_denied(text: str) -> bool:
    """Whether the last number of the text is denied, a bound, or one of two."""
    text = _readable(text)
    numbers = list(_STANDING_ALONE.finditer(text))
    return bool(numbers) and _DENIED.search(text[: numbers[-1].start()]) is not None


def _readable(text: str) -> str:
    return _UNIT_POWER.sub("", _TAG.sub(" ", without_spaces(text)))
