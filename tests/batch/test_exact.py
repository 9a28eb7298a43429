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


RIGHT = [
    ("Therefore, the final answer is: **$17**.", "17"),
    ("x: 17", "17"),
    ("17 L", "17"),
    ("17 m²", "17"),
    ("The total is 17 C.", "17"),
    ("She makes 9 * 2 = $<<9*2=18>>18", "18"),
    ("> 17", "17"),
    ("After subtracting, Maria has 17 apples left.", "17"),
    ("17km", "17"),
    ("The total distance is 17 km/h.", "17"),
    ("The area is 17 cm².", "17"),
    ("The area is 17 cm^2.", "17"),
    ("So 3 + 14 = 17", "17"),
    ("3+14=17 apples", "17"),
    ("Total: 17", "17"),
    ("= 17", "17"),
    ("=> 17", "17"),
    ("→ 17", "17"),
    ("<answer>17</answer>", "17"),
    ("<final>17</final>", "17"),
    ("`17`", "17"),
    ("**17**", "17"),
    ("$17$", "17"),
    ("$$x = 17$$", "17"),
    ("17 (seventeen)", "17"),
    ("17.", "17"),
    ("17!", "17"),
    ("It is 17!", "17"),
    ("The answer is $17.", "17"),
    ("The answer is **17**.", "17"),
    ("The answer is: $\\boxed{17}$", "17"),
    ("Final answer: 17 dollars", "17"),
    ("#### 17 dollars", "17"),
    ("Answer: 17%", "17"),
    ("Answer: 17 - that is all", "17"),
    ("Answer: 17\n\nExplanation: 20 - 3 = 17", "17"),
    ("I thought it was 16, but it is 17.", "17"),
    ("Not 16. 17.", "17"),
    ("No, it's 17", "17"),
    ("It is not hard: 17", "17"),
    ("There is no doubt that it's 17", "17"),
    ("1,017", "1017"),
    ("1 017 personnes", "1017"),
    ("Il y a 1 017 personnes.", "1017"),
    ("Das sind 12\xa0500 Euro", "12500"),
    ("1017.0", "1017"),
    ("1.017e3", "1017"),
    ("x equals \\frac{17}{2}", "17/2"),
    ("The probability is 17/20.", "0.85"),
    ("The probability is $\\frac{17}{20}$.", "17/20"),
    ("\\boxed{8\\frac{1}{2}}", "17/2"),
    ("8 1/2", "8.5"),
    ("8½ hours", "8.5"),
    ("⅓", "1/3"),
    ("It takes ⅔ of an hour", "2/3"),
    ("\\boxed{\\tfrac12}", "1/2"),
    ("The area is $\\sqrt{289}$", "17"),
    ("\\boxed{\\sqrt{289}}", "17"),
    ("\\boxed{17 \\text{ apples}}", "17"),
    ("\\boxed{17\\text{ cm}^2}", "17"),
    ("\\boxed{17 \\mathrm{cm}^2}", "17"),
    ("\\boxed{n=17}", "17"),
    ("\\boxed{-17}", "-17"),
    ("minus: -17", "-17"),
    ("The temperature is \u221217 degrees", "-17"),
    ("It fell to -17 °C", "-17"),
    ("17 °C", "17"),
    ("There are 5 boxes of 17", "17"),
    ("Each of the 3 gets 17 each", "17"),
    ("Answer: 17, since 16 is too small", "17"),
    ("Answer = 17", "17"),
    ("17 apples and pears", "17"),
    ("The year is 1917", "1917"),
    ("At 5pm there were 17", "17"),
    ("๑๗", "17"),
    ("\u06f1\u06f7", "17"),
    ("答案是17", "17"),
    ("答案：17", "17"),
    ("17個", "17"),
    ("答えは17です。", "17"),
    ("Ответ: 17", "17"),
    ("La réponse est 17.", "17"),
    ("Die Antwort ist 17 €", "17"),
    ("€17", "17"),
    ("£17.50", "17.5"),
    ("USD 17", "17"),
    ("US$17", "17"),
    ("2^4+1 = 17", "17"),
    ("10² = 100", "100"),
    ("The value is 10^2 = 100.", "100"),
    ("x² = 289, so x = 17", "17"),
    ("3 x 7 = 21", "21"),
    ("3 × 7 = 21", "21"),
    ("17 and 20 make 37", "37"),
    ("Step 1: 4. Step 2: 17", "17"),
    ("He needs at least 3 more, so 17", "17"),
    ("The minimum is 17", "17"),
    ("the least number is 17", "17"),
    ("at most 20, so 17 it is", "17"),
    ("42", "42"),
    ("It is 42.", "42"),
    ("6*7 = 42", "42"),
    ("We have 40 and 2, so 42 in total.", "42"),
    ("½", "1/2"),
    ("½", "0.5"),
    ("1½", "3/2"),
    ("1½", "1.5"),
    ("Answer: 2¾ cups", "2.75"),
    ("3/4", "¾"),
    ("\u0664\u0662", "42"),
    ("\u0627\u0644\u062c\u0648\u0627\u0628: \u0664\u0662", "42"),
    ("४२", "42"),
    ("４２", "42"),
    ("42 000", "42000"),
    ("42\u202f000", "42000"),
    ("42\xa0000", "42000"),
    ("1\u2009234\u2009567", "1234567"),
    ("It costs 42\u202f000 euros.", "42000"),
    ("42,000", "42000"),
    ("42 000", "42\u202f000"),
    ("\\boxed{x = 42}", "42"),
    ("\\boxed{42 \\text{ km}}", "42"),
    ("\\boxed{42\\,\\text{cm}^2}", "42"),
    ("\\boxed{\\$42}", "42"),
    ("\\boxed{42\\%}", "42%"),
    ("Answer: $42", "42"),
    ("Answer: x = 42", "42"),
    ("**Answer: 42 apples**", "42"),
    ("The answer is 42 apples.", "42"),
    ("#### 42", "42"),
    ("Answer: 42 because 6 x 7 is 42", "42"),
    ("The answer is 42, not 43.", "42"),
    ("It is not 41, it is 42.", "42"),
    ("The final answer is: 42", "42"),
    ("\\boxed{42^\\circ}", "42"),
    ("$x=42$", "42"),
    ("So there are 42 of them", "42"),
    ("-42", "\u221242"),
    ("x = \u221242", "-42"),
    ("\\boxed{\\sqrt{2}/2}", "\\frac{\\sqrt 2}{2}"),
    ("\\frac{1}{2}", "0.5"),
    ("4.2e1", "42"),
    ("4.2\\times 10^1", "42"),
    ("The answer is $\\frac{3}{4}$.", "3/4"),
    ("There are 42 apples, so the answer is 42", "42"),
    ("He earned $1,234.50", "1234.5"),
]
"""Most were written without a look at the rules, as were those below."""

WRONG = [
    ("17 x", "17"),
    ("17 i", "17"),
    ("2**17", "17"),
    ("x: 17 or 18", "17"),
    ("17 L 18", "17"),
    ("-17 L", "17"),
    ("Answer: > 17", "17"),
    ("#### <= 17", "17"),
    ("It can't be 17", "17"),
    ("It cannot be 17.", "17"),
    ("The answer is never 17", "17"),
    ("I don't think it is 17", "17"),
    ("It is certainly not equal to 17", "17"),
    ("not $17$", "17"),
    ("The answer isn't $17$.", "17"),
    ("\\boxed{\\text{not } 17}", "17"),
    ("It is 16 or 17", "17"),
    ("It is 17 or 16", "17"),
    ("16, 17 or 18", "18"),
    ("Answer: 16/17", "17"),
    ("Answer: 17/16", "17"),
    ("Answer: 17 or 16", "17"),
    ("#### 17, 18", "17"),
    ("#### 17 18", "17"),
    ("#### 17 and 18", "17"),
    ("\\boxed{17 \\text{ and } 18}", "18"),
    ("\\boxed{17,18}", "18"),
    ("\\boxed{(16,17)}", "17"),
    ("\\boxed{\\{16,17\\}}", "17"),
    ("fewer than 17", "17"),
    ("The answer is greater than 17", "17"),
    ("x ≥ 17", "17"),
    ("\\boxed{x\\leq 17}", "17"),
    ("$x \\geq 17$ holds", "17"),
    ("between 16 and 17 apples", "17"),
    ("from 16 to 17 apples", "17"),
    ("16 to 17", "17"),
    ("16-17 apples", "17"),
    ("16\u201317 apples", "17"),
    ("17^2", "17"),
    ("The answer is 17^2", "17"),
    ("The answer is 17²", "17"),
    ("The answer is 2^17 apples", "17"),
    ("The answer is $2^{17}$.", "17"),
    ("The answer is √17", "17"),
    ("The answer is $\\sqrt{17}$.", "17"),
    ("the length is sqrt(17) cm", "17"),
    ("The answer is 17π", "17"),
    ("The answer is $17\\pi$ cm", "17"),
    ("it is 17x in the end", "17"),
    ("The answer is 17i", "17"),
    ("the answer is log 17 apples", "17"),
    ("\\boxed{\\log 17}", "17"),
    ("\\boxed{17\\sqrt2}", "17"),
    ("\\boxed{\\frac{17}{x}}", "17"),
    ("\\boxed{17+x}", "17"),
    ("1 017", "17"),
    ("1 017 personnes", "17"),
    ("12\xa0500 Euro", "500"),
    ("8½ hours", "8"),
    ("8½", "1/2"),
    ("8½", "81/2"),
    ("8\\frac{1}{2}", "81/2"),
    ("8 1/2", "1/2"),
    ("8 1/2", "81/2"),
    ("8 1/2", "4"),
    ("10²", "102"),
    ("10²", "10"),
    ("10₂", "102"),
    ("x₁₇", "17"),
    ("x_{17}", "17"),
    ("CO17", "17"),
    ("B17", "17"),
    ("v17", "17"),
    ("1.2.17", "17"),
    ("2024-05-17", "17"),
    ("5/17", "17"),
    ("05/06/17", "17"),
    ("12:17", "17"),
    ("0x17", "17"),
    ("1e17", "17"),
    ("17e5", "17"),
    ("17.5", "17"),
    ("17,5", "17"),
    ("17,500", "17"),
    ("17 500", "17"),
    ("170", "17"),
    ("Answer: 5 * 17 apples", "17"),
    ("Answer: 17 * 5 apples", "17"),
    ("17 + 5 apples", "17"),
    ("17 - 5 apples", "5"),
    ("1½", "11/2"),
    ("Answer: unknown, perhaps 16 or 17", "17"),
    ("17 or more", "17"),
    ("about 16.9, i.e. not 17", "17"),
    ("I have no idea", "17"),
    ("17 is wrong", "17"),
    ("17 is not the answer", "17"),
    ("17 is too large, so it must be 16", "17"),
    ("3 100", "3"),
    ("0", "42 000"),
    ("1234567", "1 234 567"),
    ("Q17", "17"),
    ("(17)(2)", "17"),
    ("17(2)", "17"),
    ("not 42", "42"),
    ("It is not 42.", "42"),
    ("The answer is not 42.", "42"),
    ("Answer: not 42", "42"),
    ("It isn't 42", "42"),
    ("x ≠ 42", "42"),
    ("x \\neq 42", "42"),
    ("x != 42", "42"),
    ("\\boxed{\\sqrt{42}}", "42"),
    ("\\boxed{x^{42}}", "42"),
    ("\\boxed{10^{42}}", "42"),
    ("\\boxed{41, 42}", "42"),
    ("\\boxed{42, 43}", "42"),
    ("\\boxed{\\frac{x}{42}}", "42"),
    ("\\boxed{42x}", "42"),
    ("\\boxed{[41,42]}", "42"),
    ("\\boxed{42i}", "42"),
    ("\\boxed{42\\pi}", "42"),
    ("\\boxed{41 \\text{ or } 42}", "42"),
    ("Answer: 41 or 42", "41"),
    ("Answer: 41 or 42", "42"),
    ("The answer is 41 or 42.", "41"),
    ("either 41 or 42", "42"),
    ("#### 41 or 42", "41"),
    ("Answer: 42^2", "42"),
    ("Answer: sqrt(42)", "42"),
    ("Answer: 42/5", "42"),
    ("Answer: 5/42", "42"),
    ("42 000", "0"),
    ("42 000", "42"),
    ("1 234", "234"),
    ("42\u202f000", "0"),
    ("1½", "1/2"),
    ("1½", "1"),
    ("2¾", "3/4"),
    ("1½", "12"),
    ("x > 42", "42"),
    ("at least 42", "42"),
    ("more than 42", "42"),
    ("Answer: x < 42", "42"),
    ("\\boxed{x \\ge 42}", "42"),
    ("10 42", "1042"),
    ("7 420", "742"),
    ("5 123 999", "5123"),
    ("2²", "22"),
    ("x²", "2"),
    ("42⁵", "425"),
    ("1 000", "1"),
    ("I do not know", "42"),
    ("between 40 and 42", "42"),
    ("40-42", "42"),
    ("12:42", "42"),
    ("v1.42", "42"),
    ("3.42", "42"),
    ("142", "42"),
    ("42", "142"),
    ("-42", "42"),
    ("42", "-42"),
    ("0.42", "42"),
    ("Answer: 42 (or perhaps 43)", "43"),
]
"""The expected number stands in most of them."""


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


@pytest.mark.parametrize(("answer", "expected"), RIGHT)
def test_an_answer_in_words_or_other_scripts_is_right(answer: str, expected: str) -> None:
    assert scored(answer, expected) == 1.0


@pytest.mark.parametrize(("answer", "expected"), WRONG)
def test_an_answer_that_is_not_the_expected_number_is_wrong(
    grader: MathGrader, answer: str, expected: str
) -> None:
    assert scored(answer, expected) == 0.0
    assert grader.grade(answer, expected).value == 0.0


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
