"""Texts and numbers of answers: the part that is final, its normal form, and whether two are equal as such.

Nothing is evaluated here: `grading.mathematics` does that.
"""

from __future__ import annotations

import re
import unicodedata

from hermes.batch.grading.numbers import in_ascii, read_number, without_mixed, without_spaces
from hermes.core import JSON

_BOXED = re.compile(r"\\f?boxed\s*\{")
_MARKED = re.compile(
    r"^\W*(?:####|(?:the\s+)?(?:final\s+)?answer(?:\s+is)?\s*:)[\s*_`]*(.*)$", re.IGNORECASE | re.MULTILINE
)
_STATED = re.compile(r"\banswer\s+is\s+(.+?)(?:\.(?=\s|$)|[!?]|$)", re.IGNORECASE | re.MULTILINE)
_COMMAND = re.compile(r"\\[a-zA-Z]+|\b(?:sin|cos|tan|log|exp|sqrt|inf)\b")
_SEVERAL_NUMBERS = re.compile(r"\d\s*[-/.:]\s*\d+\s*[-/.:]\s*\d|\d\s?[-:]\s?\d|\d\s+\d", re.ASCII)
"""Dates, times, versions, addresses, scores, rows."""
_BOUND = re.compile(r"[<>]=?\s*[-+.\d]")
_WORD = re.compile(r"[a-zA-Z]{2}|[^\W\d_a-zA-Z\u0370-\u03ff]")
_LETTERS = re.compile(r"[a-zA-Z]+")
_INVISIBLE = re.compile("[\u00ad\u200b-\u200f\u2028-\u202e\u2060-\u2064\ufeff]")
_PUNCTUATION = " \t\n.,;:!?\"'`*_$()[]{}<>“”‘’«»„。、「」『』《》"
_LATEX = (
    (re.compile(r"(?<=\d)\s*(?=\\[dt]?frac)"), " "),  # 1\frac{1}{2} is 1 1/2
    (re.compile(r"\\[dt]?frac\s*(?:\{([^{}]*)\}|(\d))\s*(?:\{([^{}]*)\}|(\d))"), r"\1\2/\3\4"),
    (re.compile(r"\\(?:text|math)(?:bf|it|rm|sf|tt)?\s*\{([^{}]*)\}"), r"\1"),
    (re.compile(r"(?<=\d)(?:\\[,;:!]|,\\!)(?=\d{3}(?!\d))"), ","),  # 10\,000 and 1,\!000
    (re.compile(r"\\(?:left|right|[()\[\],;:! ])|\$"), " "),
    (re.compile(r"\{,\}"), ","),
    (re.compile(r"\\%"), "%"),
    (re.compile(r"[−–](?=\s*[\d.])"), "-"),
)


def matches(answer: str, expected: JSON) -> bool:
    final = final_part(answer)
    forms = {normalise(final), normalise(without_spaces(final))}
    return any(normalise(str(choice)) in forms for choice in choices(expected))


def choices(expected: JSON) -> list[JSON]:
    return expected if isinstance(expected, list) else [expected]


def is_mathematics(expected: str) -> bool:
    """Whether the text is a value to calculate with.

    Words are not: read as products of letters, `listen` and `silent` would be equal. Nor are dates.
    """
    longest = max(map(len, _LETTERS.findall(_COMMAND.sub(" ", expected))), default=0)
    if longest > 2 or _SEVERAL_NUMBERS.search(without_latex(expected)):
        return False
    return bool(re.search(r"[\d\\^]", expected) or (longest < 2 and re.search(r"[+*/=<>]", expected)))


def has_words(text: str) -> bool:
    """Whether it has words, of any script; the names of functions and of LaTeX's commands are none."""
    return _WORD.search(_COMMAND.sub(" ", text)) is not None


def plain(text: str) -> str:
    """NFKC, case folded, without invisible characters, with single spaces."""
    return " ".join(_INVISIBLE.sub(" ", unicodedata.normalize("NFKC", text)).casefold().split())


def final_part(answer: str) -> str:
    """Returns the part that the answer marks as its result; all of it if nothing is marked."""
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
    plain = without_latex(text if box is None else box)
    if _BOUND.match(plain):
        return plain
    stripped = plain.strip(_PUNCTUATION)
    decimal = plain.lstrip(_PUNCTUATION.replace(".", "")).rstrip(_PUNCTUATION)  # .5 begins with its point
    number = read_number(decimal)
    return stripped if number is None else str(number)


def without_latex(text: str) -> str:
    """NFKC and case folded, without the marks of LaTeX around and within a value, with single spaces."""
    plain = unicodedata.normalize("NFKC", in_ascii(text)).casefold()
    for pattern, plainer in _LATEX:
        plain = pattern.sub(plainer, plain)
    return without_mixed(" ".join(plain.split()))
