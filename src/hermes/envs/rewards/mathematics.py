"""Rewards for mathematical answers: equal in value, whatever the notation (math-verify).

Plain numbers are compared here; anything else is parsed and compared by math-verify in a worker that
can be killed. An answer that no exam would accept as one (very long, or a tower of powers) is wrong
without being worked out. An expectation that does not parse, or a comparison that does not end, is a
failure of the grader.
"""

from __future__ import annotations

import logging
import re
from typing import Any

from hermes.envs.rewards.number import final_number, read_number
from hermes.envs.rewards.result import GraderError, RewardResult, failed, passed
from hermes.envs.rewards.worker import GraderProcess

_MAX_CHARS = 300
_MONSTROUS = re.compile(r"(\^|\*\*)\s*[{(]?\s*(\d{4,}|[^}]*(\^|\*\*))|!\s*!|\d{4,}\s*!")
_BOXED = re.compile(r"\\boxed\s*\{")
_MARK = re.compile(r"####|(?:final\s+)?answer(?:\s+is|\s*[:=])", re.IGNORECASE)


class MathGrader:
    """Compares answers by value. Keeps one worker; `close` ends it."""

    def __init__(self, timeout_s: float = 10.0) -> None:
        self._worker = GraderProcess("hermes.envs.rewards.mathematics", timeout_s)

    def grade(self, answer: str, expected: str) -> RewardResult:
        """1 if what the answer commits to equals what is expected."""
        wanted = read_number(expected)
        given = final_answer(answer)
        if not given.strip():
            return failed("the answer is empty")
        if wanted is not None and final_number(given) == wanted:
            return passed()
        if len(given) > _MAX_CHARS or _MONSTROUS.search(given):
            return failed("the answer is not in a form that can be compared")
        verdict = self._worker.call("compare", expected=expected, given=given)
        if verdict == "unreadable":
            raise GraderError(f"the expected answer '{expected}' is not mathematics that can be read")
        return passed() if verdict == "equal" else failed(f"not equal to {expected}")

    def close(self) -> None:
        self._worker.close()


def final_answer(text: str) -> str:
    """The part of an answer that is meant to be graded: the last box, else after the last mark, else all."""
    boxes = list(_BOXED.finditer(text))
    if boxes:
        return _braced(text[boxes[-1].end() :])
    marks = list(_MARK.finditer(text))
    if marks:
        return text[marks[-1].end() :].strip()
    return text.strip()


def _braced(text: str) -> str:
    depth = 1
    for index, char in enumerate(text):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth == 0:
            return text[:index]
    return text


def compare(expected: str, given: str) -> str:
    """equal, different or unreadable (the expectation). Runs in the worker, which bounds its time."""
    from math_verify import parse, verify  # type: ignore[import-untyped]

    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns that it sets no time limit: we do

    def read(text: str) -> list[Any]:
        forms = (f"${text}$", text)
        found = (parse(form, fallback_mode="no_fallback", parsing_timeout=None) for form in forms)
        return next((parsed for parsed in found if parsed), [])

    gold = read(expected)
    if not gold:
        return "unreadable"
    said = read(given)
    return "equal" if said and verify(gold, said, timeout_seconds=None) else "different"
