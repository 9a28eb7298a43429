"""Scoring by the row's `expected`: an equal text, an equal number, or for mathematics an equal value.

The compared text is the part that the answer marks as final: the last `\\boxed{…}`, or what follows the last
`####` or `Answer:` at the beginning of a line, else what a last `… answer is …` states, else the whole
answer. Normalising ignores case, spacing, surrounding punctuation, Markdown and LaTeX's marks around a value,
and how a number is written: 1,234.0 and `1 234` are 1234, and .5, ½ and `\\frac{1}{2}` are one number. A list
of expected answers matches if any of them does. An expected answer that is mathematics, and not words, is
compared as environments compare it (`grading.mathematics`): `2(x+1)` is `2x+2`, and of an answer that marks
nothing the last number counts, unless it is denied (`not 42`), a bound, an operand or one of several.
"""

from __future__ import annotations

import importlib.util
from functools import cache

from hermes.batch.grading.answers import choices, is_mathematics, matches
from hermes.batch.grading.mathematics import MathComparison, UnreadableError
from hermes.batch.reward import RewardContext


def exact_match(ctx: RewardContext) -> float:
    """1.0 or 0.0; a row without `expected` cannot be scored."""
    return float(text_match(ctx) or any(_equal(ctx.answer, str(choice)) for choice in choices(ctx.expected)))


def _equal(answer: str, expected: str) -> bool:
    try:
        return is_mathematics(expected) and _comparison().difference(answer, expected) is None
    except UnreadableError:
        return False  # a text after all


def text_match(ctx: RewardContext) -> float:
    """The same without math-verify, where it is not installed: only equal texts and equal numbers."""
    if ctx.expected is None:
        raise ValueError("the row has no 'expected'")
    return float(matches(ctx.answer, ctx.expected))


@cache
def _comparison() -> MathComparison:
    """One worker for the process; it ends with it."""
    return MathComparison()


def grader_name() -> str:
    """The function that scores by `expected` here."""
    installed = importlib.util.find_spec("math_verify") is not None
    return (exact_match if installed else text_match).__name__
