"""Sums for a calculator: the question, the expression to calculate, and the exact answer.

Two kinds: one operation on two numbers, and two steps, where the second step uses the result of the first. No
number in a question is its answer, so that repeating the question is never right.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from hermes.tools.builtin.calculator import calculate

_SYMBOLS = {"plus": "+", "minus": "-", "times": "*"}
_ONE_STEP = (
    "What is {a} {op} {b}?",
    "Calculate {a} {op} {b}.",
    "How much is {a} {op} {b}?",
    "{a} {op} {b} = ?",
)
_TWO_STEPS = (
    "What is ({a} {op} {b}) {op2} {c}?",
    "Take {a} {op} {b}, then {word2} {c}. What do you get?",
    "Work out {a} {op} {b} first. Then take the result {word2} {c}.",
)


@dataclass(frozen=True, slots=True)
class Sum:
    question: str
    expression: str
    """In the calculator's syntax."""
    steps: tuple[str, ...]
    """The expressions of the calculator calls, in order."""
    answer: str
    key: str
    """The numbers and operations in canonical order: 2 + 3 and 3 + 2 have the same key."""


def one_step(rng: random.Random, digits: int = 4) -> Sum:
    """An addition, subtraction or multiplication of numbers with 2 to `digits` digits."""
    while True:
        word, symbol = rng.choice(list(_SYMBOLS.items()))
        a, b = _number(rng, digits), _number(rng, digits)
        expression = f"{a} {symbol} {b}"
        total = calculate(expression)
        if total in (str(a), str(b)):
            continue
        question = rng.choice(_ONE_STEP).format(a=a, b=b, op=rng.choice((word, symbol)))
        return Sum(question, expression, (expression,), total, _key((a, b), symbol))


def two_steps(rng: random.Random, digits: int = 3) -> Sum:
    while True:
        (word, symbol), (word2, symbol2) = (rng.choice(list(_SYMBOLS.items())) for _ in range(2))
        a, b, c = (_number(rng, digits) for _ in range(3))
        first = f"{a} {symbol} {b}"
        middle = calculate(first)
        last = f"{middle} {symbol2} {c}"
        total = calculate(last)
        if total in (str(a), str(b), str(c), middle):
            continue
        question = rng.choice(_TWO_STEPS).format(
            a=a, b=b, c=c, op=rng.choice((word, symbol)), op2=symbol2, word2=word2
        )
        key = _key((a, b, c), symbol + symbol2)
        return Sum(question, f"({first}) {symbol2} {c}", (first, last), total, key)


def _key(numbers: Sequence[int], symbols: str) -> str:
    return f"{' '.join(map(str, sorted(numbers)))} {''.join(sorted(symbols))}"


def _number(rng: random.Random, digits: int) -> int:
    size = rng.randint(2, digits)
    return rng.randint(10 ** (size - 1), 10**size - 1)
