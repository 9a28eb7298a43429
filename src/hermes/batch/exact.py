"""Scoring by exact match: the answer, normalised, equals the row's `expected`, normalised.

The compared text is the part that the answer marks as final: the last `\\boxed{…}`, or what follows the last
`####` or `Answer:` at the beginning of a line, else what a last `… answer is …` states, else the whole
answer. Normalising ignores case, spacing, surrounding punctuation, Markdown and LaTeX's marks around a value,
and how a number is written: 1,234.0 is 1234, and .5, 1/2 and `\\frac{1}{2}` are one number. A list of
expected answers matches if any of them does. Nothing is guessed: `about 42` is not `42`, and `2(x+1)` is not
`2x+2`; environments (`envs.rewards.mathematics`) begin with this comparison and go on with math-verify.
"""

from __future__ import annotations

import re
import unicodedata
from fractions import Fraction

from hermes.batch.reward import RewardContext
from hermes.core import JSON

_BOXED = re.compile(r"\\f?boxed\s*\{")
_MARKED = re.compile(
    r"^\W*(?:####|(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*:)[\s*_`]*(.*)$", re.IGNORECASE | re.MULTILINE
)
_STATED = re.compile(r"\banswer\s+is\s+(.+?)(?:\.(?=\s|$)|[!?]|$)", re.IGNORECASE | re.MULTILINE)
NUMBER = re.compile(
    r"[-+−]?(?:(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+)(?:e[-+]?\d{1,3}(?!\d))?(?:/\d+)?", re.ASCII
)
"""In normalised text."""
_MAX_DIGITS = 400
_MAX_EXPONENT = 300
_PUNCTUATION = " \t\n.,;:!?\"'`*_$()[]{}<>“”‘’"
_LATEX = (
    (re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))"), r"\1\2/\3\4"),
    (re.compile(r"\\(?:text|math)(?:bf|it|rm|sf|tt)?\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"\\(?:left|right|[()\[\],;:! ])|\$"), " "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"[−–](?=\s*[\d.])"), "-"),
)


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
    box = last_box(answer)
    if box is not None:
        return box
    marked = [text for text in _MARKED.findall(answer) if text.strip(_PUNCTUATION)]
    marked = marked or _STATED.findall(answer)
    return str(marked[-1]) if marked else answer


def last_box(text: str) -> str | None:
    """The content of the last LaTeX box, braces in it included; None if there is none."""
    boxes = list(_BOXED.finditer(text))
    if not boxes:
        return None
    depth, content = 1, text[boxes[-1].end() :]
    for index, char in enumerate(content):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth == 0:
            return content[:index]
    return content


def normalise(text: str) -> str:
    box = last_box(text)
    plain = unicodedata.normalize("NFKC", text if box is None else box).casefold()
    for pattern, plainer in _LATEX:
        plain = pattern.sub(plainer, plain)
    plain = " ".join(plain.split())
    stripped = plain.strip(_PUNCTUATION)
    decimal = plain.lstrip(_PUNCTUATION.replace(".", "")).rstrip(_PUNCTUATION)  # .5 begins with its point
    number = read_number(decimal)
    return stripped if number is None else str(number)


def read_number(spelled: str) -> Fraction | None:
    """The number that the normalised text spells; None if it spells none, divides by zero or is too long."""
    if len(spelled) > _MAX_DIGITS or not NUMBER.fullmatch(spelled):
        return None
    number, _, divisor = spelled.replace(",", "").replace("−", "-").partition("/")
    exponent = number.partition("e")[2]
    if abs(int(exponent or 0)) > _MAX_EXPONENT or (divisor and not int(divisor)):
        return None
    return Fraction(number) / int(divisor or 1)
