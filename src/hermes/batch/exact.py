"""Scoring by exact match: the answer, normalised, equals the row's `expected`, normalised.

The compared text is the part that the answer marks as final: the last `\\boxed{…}`, or the last line that
opens with `####` or `Answer:`, else what a last `… answer is …` states, else the whole answer. Normalising
ignores case, spacing, surrounding punctuation and Markdown, and how a number is written (1,234.0 is 1234). A
list of expected answers matches if any of them does. Nothing is guessed: `about 42` is not `42`.
"""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

from hermes.batch.reward import RewardContext
from hermes.core import JSON

_BOXED = re.compile(r"\\boxed\{([^{}]*)\}")
_MARKED = re.compile(
    r"^\W*(?:####|(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*:)(.*)$", re.IGNORECASE | re.MULTILINE
)
_STATED = re.compile(r"\banswer\s+is\s+(.+?)(?:\.(?=\s|$)|[!?]|$)", re.IGNORECASE | re.MULTILINE)
_NUMBER = re.compile(r"[-+]?(?:\d+|\d{1,3}(?:,\d{3})+)(?:\.\d+)?")
_PUNCTUATION = " \t\n.,;:!?\"'`*_$()[]{}<>“”‘’"


def exact_match(ctx: RewardContext) -> float:
    """1.0 or 0.0; a row without `expected` cannot be scored."""
    if ctx.expected is None:
        raise ValueError("the row has no 'expected'")
    return float(matches(ctx.answer, ctx.expected))


def matches(answer: str, expected: JSON) -> bool:
    choices = expected if isinstance(expected, list) else [expected]
    final = normalise(final_part(answer))
    return any(final == normalise(str(choice)) for choice in choices)


def final_part(answer: str) -> str:
    """What the answer marks as its result; all of it if nothing is marked."""
    marked = _BOXED.findall(answer) or [text for text in _MARKED.findall(answer) if text.strip(_PUNCTUATION)]
    marked = marked or _STATED.findall(answer)
    return str(marked[-1]) if marked else answer


def normalise(text: str) -> str:
    plain = " ".join(unicodedata.normalize("NFKC", text).casefold().split()).strip(_PUNCTUATION)
    if not _NUMBER.fullmatch(plain):
        return plain
    number = format(Decimal(plain.replace(",", "")), "f")
    number = number.rstrip("0").rstrip(".") if "." in number else number
    return "0" if number in ("-0", "") else number
