"""Sums that a calculator makes easy: questions, the expression to calculate, and the exact answer.

Two kinds: one operation on two numbers, and two steps, where the second works on the first one's result. No
number in a question is its answer, so repeating the question is never right.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from hermes.tools.builtin.calculator import calculate

_SYMBOLS = {"plus": "+", "minus": "-", "times": "*"}
_ONE = ("What is {a} {op} {b}?", "Calculate {a} {op} {b}.", "How much is {a} {op} {b}?", "{a} {op} {b} = ?")
_TWO = (
    "What is ({a} {op} {b}) {op2} {c}?",
    "Take {a} {op} {b}, then {word2} {c}. What do you get?",
    "Work out {a} {op} {b} first. Then take the result {word2} {c}.",
)


@dataclass(frozen=True, slots=True)
class Sum:
    question: str
    expression: str
    """What to calculate, as the calculator reads it."""
    steps: tuple[str, ...]
    """The same, one calculator call after the other."""
    answer: str
    key: str
    """The numbers and operations, in an order of their own: 2 + 3 and 3 + 2 are the same knowledge."""


def one_step(chance: random.Random, digits: int = 4) -> Sum:
    """An addition, subtraction or multiplication of numbers with 2 to `digits` digits."""
    while True:
        word, symbol = chance.choice(list(_SYMBOLS.items()))
        a, b = _number(chance, digits), _number(chance, digits)
        expression = f"{a} {symbol} {b}"
        answer = calculate(expression)
        if answer in (str(a), str(b)):
            continue
        question = chance.choice(_ONE).format(a=a, b=b, op=chance.choice((word, symbol)))
        return Sum(question, expression, (expression,), answer, _key((a, b), symbol))


def two_steps(chance: random.Random, digits: int = 3) -> Sum:
    while True:
        (word, symbol), (word2, symbol2) = (chance.choice(list(_SYMBOLS.items())) for _ in range(2))
        a, b, c = (_number(chance, digits) for _ in range(3))
        first = f"{a} {symbol} {b}"
        middle = calculate(first)
        last = f"{middle} {symbol2} {c}"
        answer = calculate(last)
        if answer in (str(a), str(b), str(c), middle):
            continue
        question = chance.choice(_TWO).format(
            a=a, b=b, c=c, op=chance.choice((word, symbol)), op2=symbol2, word2=word2
        )
        key = _key((a, b, c), symbol + symbol2)
        return Sum(question, f"({first}) {symbol2} {c}", (first, last), answer, key)


def _key(numbers: Sequence[int], symbols: str) -> str:
    return f"{' '.join(map(str, sorted(numbers)))} {''.join(sorted(symbols))}"


def _number(chance: random.Random, digits: int) -> int:
    size = chance.randint(2, digits)
    return chance.randint(10 ** (size - 1), 10**size - 1)
