"""Whether two answers are equal in value, whatever the notation: the comparison of batches and environments.

Equal is what `grading.answers` calls equal, and where a number is expected the number that an answer in words
commits to (`grading.numbers`). Any other answer is parsed and compared by math-verify in a worker that can be
killed: all of a box, or the last formula among words. A very long answer, or one with nested
powers, is wrong without evaluation, and so is one whose evaluation uses up the time or memory of its process.
An expected answer that does not parse, or that cannot be compared with itself, is a failure of the grader.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from hermes.batch.grading.answers import has_words, last_box, matches, without_latex
from hermes.batch.grading.numbers import (
    MARK,
    final_number,
    in_ascii,
    is_denied,
    lone_number,
    read_number,
    without_mixed,
    without_spaces,
)
from hermes.batch.grading.worker import EvaluationExhaustedError, GraderProcess
from hermes.batch.reward import GraderError

_MAX_CHARS = 300
_NESTED_POWERS = re.compile(r"(\^|\*\*)\s*[{(]?\s*(\d{4,}|[^}]*(\^|\*\*))|!\s*!|\d{4,}\s*!")
_FORMULA = re.compile(r"\$[^$]+\$|\\\(.+?\\\)|\\\[.+?\\\]", re.DOTALL)
_ROW = re.compile(r"\d \d")
"""Several numbers, which math-verify would multiply: 0 would be `42 000`."""
_MODULE = "hermes.batch.grading.mathematics"


class UnreadableError(GraderError):
    """The expected answer is no mathematics."""


class MathComparison:
    """Compares answers by value, in one worker process; `close` ends it."""

    def __init__(self, timeout_s: float = 10.0) -> None:
        self._worker = GraderProcess(_MODULE, timeout_s)

    def difference(self, response: str, expected: str) -> str | None:
        """Why the final answer of the response is not the expected one; None: it is. GraderError."""
        candidate = final_answer(response)
        if not candidate.strip():
            return "the answer is empty"
        if matches(response, expected):
            return None
        expected, candidate = in_ascii(expected), without_mixed(without_spaces(in_ascii(candidate)))
        number = read_number(without_latex(expected))
        if number is not None:
            text = without_latex(response if last_box(response) is None else candidate)
            words = has_words(without_latex(candidate))
            final = final_number(text) if words else lone_number(without_latex(candidate))
            if final is not None:
                return None if final == number else f"not equal to {expected}"
            formulas = _FORMULA.findall(candidate) if words else [candidate.strip("*_`~≈ \n")]
            if is_denied(text) or not formulas:
                return "the answer commits to no number"
            candidate = formulas[-1]
        elif _ROW.search(without_latex(expected)):
            return f"not equal to {expected}"
        if len(candidate) > _MAX_CHARS or _NESTED_POWERS.search(candidate):
            return "the answer is not in a form that can be compared"
        try:
            verdict = self._worker.call("compare", expected=expected, candidate=candidate)
        except EvaluationExhaustedError as error:
            self._worker.call("compare", expected=expected, candidate=expected)  # raises if that is to blame
            return f"the answer cannot be evaluated: {error.message}"
        if verdict == "unreadable":
            raise UnreadableError(f"the expected answer '{expected}' cannot be parsed as mathematics")
        return None if verdict == "equal" else f"not equal to {expected}"

    def close(self) -> None:
        self._worker.close()


def final_answer(text: str) -> str:
    """The part of a response to grade: the last box, else the text after the last answer mark, else all."""
    box = last_box(text)
    if box is not None:
        return box
    marks = list(MARK.finditer(text))
    if marks:
        return text[marks[-1].end() :].strip()
    return text.strip()


def preload() -> None:
    """Imports the packages and reads their grammar, once for all calls."""
    compare("x^2", r"\frac{1}{2}")


def compare(expected: str, candidate: str) -> str:
    """`equal`, `different`, or `unreadable` (expected). Runs in the worker, which limits its time."""
    from math_verify import parse, verify  # type: ignore[import-untyped]

    logging.getLogger("math_verify").setLevel(
        logging.ERROR
    )  # it warns of a missing time limit, which the worker has

    def read(text: str) -> list[Any]:
        forms = (f"${text}$", text)
        attempts = (parse(form, fallback_mode="no_fallback", parsing_timeout=None) for form in forms)
        return next((expressions for expressions in attempts if expressions), [])

    gold = read(expected)
    if not gold:
        return "unreadable"
    target = read(candidate)
    return "equal" if target and verify(gold, target, timeout_seconds=None) else "different"
