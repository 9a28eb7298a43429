"""Batches and environments call the same answers right: drawn values in drawn notations."""

from __future__ import annotations

import random
from collections.abc import Iterator
from fractions import Fraction
from types import SimpleNamespace
from typing import Any, cast

import pytest

from hermes.batch import exact
from hermes.core import JSON
from hermes.envs.rewards.mathematics import MathGrader

FRAMES = (
    "{}",
    r"\boxed{{{}}}",
    "Answer:\n{}",
    "**Answer:** {}",
    "#### {}",
    "The answer is {}.",
    r"So \({}\)",
)


@pytest.fixture(scope="module")
def grader() -> Iterator[MathGrader]:
    opened = MathGrader(timeout_s=60)
    yield opened
    opened.close()


def scored(answer: str, expected: JSON) -> float:
    return exact.exact_match(cast("Any", SimpleNamespace(answer=answer, expected=expected)))


def notations(draw: random.Random, value: Fraction) -> list[str]:
    """Ways to write a rational."""
    sign, size = ("-" if value < 0 else ""), abs(value)
    minus = draw.choice(("-", "\u2212")) if sign else ""
    forms = [
        f"{minus}{size.numerator}/{size.denominator}",
        f"{sign}\\frac{{{size.numerator}}}{{{size.denominator}}}",
        f"{sign}\\dfrac{{{3 * size.numerator}}}{{{3 * size.denominator}}}",
    ]
    if size.denominator == 1:
        spaced = f"{size.numerator:,}".replace(",", draw.choice((r"\,", r",\!", "{,}")))
        forms += [
            f"{minus}{spaced}",
            f"{minus}{size.numerator}",
            f"{minus}{size.numerator:,}",
            f"{sign}{size.numerator}.0",
        ]
    if 1000 % size.denominator == 0:
        decimal = f"{float(size):.3f}"
        forms += [f"{minus}{decimal}", f"{minus}{decimal.lstrip('0')}" if size < 1 else f"{minus}{decimal}"]
    return forms


def test_spaces_of_latex_in_the_expected_number_are_read(grader: MathGrader) -> None:
    for expected in ("−2,\\!303", "-2\\,303", "-2{,}303"):
        for answer, right in (("So \\(-2303.000\\)", 1.0), ("So -2304", 0.0)):
            assert (scored(answer, expected), grader.grade(answer, expected).value) == (right, right)


def test_a_value_is_right_in_every_notation_and_another_in_none(grader: MathGrader) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(60):
        value = Fraction(draw.randint(-3000, 3000), draw.choice((1, 1, 2, 3, 4, 5, 7, 8, 125)))
        other = value + draw.choice((1, -1, Fraction(1, 2)))
        expected, said = draw.choice(notations(draw, value)), draw.choice(notations(draw, value))
        wrong = draw.choice(notations(draw, other))
        frame = draw.choice(FRAMES)
        for text, right in ((said, 1.0), (wrong, 0.0)):
            answer = frame.format(text)
            assert scored(answer, expected) == right, (answer, expected)
            assert grader.grade(answer, expected).value == right, (answer, expected)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (r"\boxed{\frac{1}{2}}", "0.5"),
        ("Answer:\n42", 42),
        (r"\(42\)", "42"),
        (".5", "1/2"),
        ("\u22127", "-7"),
        (r"\boxed{\text{B}}", "B"),
        ("2(x+1)", "2x+2"),
        (r"\boxed{\frac{\sqrt{3}}{3}}", r"\frac{1}{\sqrt{3}}"),
        ("17 * 23 = 391", "391"),
        ("It is 3.", ["2", "3"]),
        (r"\boxed{10\,000}", "10000"),
        (r"1{,}234{,}567", 1234567),
    ],
)
def test_equal_values_are_right(grader: MathGrader, answer: str, expected: JSON) -> None:
    assert scored(answer, expected) == 1.0
    assert any(
        grader.grade(answer, str(each)).value
        for each in (expected if isinstance(expected, list) else [expected])
    )


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("silent", "listen"),
        ("2018", "2024-05-01"),
        ("CA/CD", "AC/DC"),
        ("12", "1.2.3"),
        ("10:31", "10:30"),
        ("about Paris", "Paris"),
        ("x+1", "(x+1)^2"),
        ("", "7"),
        ("A", "B"),
    ],
)
def test_other_answers_are_wrong(answer: str, expected: JSON) -> None:
    assert scored(answer, expected) == 0.0
