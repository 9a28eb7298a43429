"""Rewards on numbers and mathematics, with answers that list candidates, or try to outlast the grader."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.batch.grading.worker import EvaluationExhaustedError, GraderProcess
from hermes.envs.rewards.mathematics import MathGrader, final_answer
from hermes.envs.rewards.number import numeric
from hermes.envs.rewards.result import GraderError


@pytest.mark.parametrize(
    "said",
    [
        "1250",
        "1,250",
        "It is 1250.",
        "5 * 250 = 1250",
        "#### 1250",
        "answer: 1250 (not 1300)",
        "1250.0",
        "1.25e3",
    ],
)
def test_the_number_an_answer_commits_to_is_compared_by_value(said: str) -> None:
    assert numeric(said, "1250").value == 1.0


@pytest.mark.parametrize(
    "said",
    [
        "",
        "no idea",
        "1250 or 1251",
        " ".join(map(str, range(3000))),
        "12500",
        "1250 is wrong, it is 7",
        "-1250",
        "#### 7, but 1250",
        "1e999999999",
        "1/0",
        "9" * 100_000,
        "0x4e2",
    ],
)
def test_a_wrong_or_uncommitted_answer_is_worth_nothing(said: str) -> None:
    assert numeric(said, "1250").value == 0.0


def test_fractions_and_decimals_are_exact() -> None:
    assert numeric("0.5", "1/2").value == 1.0
    assert numeric("0.1", "1/10").value == 1.0
    assert numeric("0.333", "1/3").value == 0.0
    assert numeric("0.333", "1/3", tolerance=0.01).value == 1.0


def test_an_expectation_that_is_no_number_is_the_graders_failure() -> None:
    with pytest.raises(GraderError, match="not a number"):
        numeric("3", "three")


@given(st.integers(-(10**12), 10**12))
def test_every_whole_number_is_itself_however_it_is_written(number: int) -> None:
    assert numeric(f"The result is {number:,}.", str(number)).value == 1.0
    assert numeric(f"{number + 1}", str(number)).value == 0.0


@given(st.text(max_size=200))
def test_no_text_makes_the_number_reader_fail(said: str) -> None:
    assert numeric(said, "7").value in (0.0, 1.0)


@pytest.fixture(scope="module")
def grader() -> Iterator[MathGrader]:
    opened = MathGrader(timeout_s=60)
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        (r"So \boxed{\frac{1}{2}}", "0.5"),
        (r"\boxed{2\sqrt{3}}", r"\sqrt{12}"),
        ("The answer is x^2+2x+1", "(x+1)^2"),
        ("#### 1,250", "1250"),
        (r"first \boxed{3}, then \boxed{7}", "7"),
        ("Answer:\n.5", "1/2"),
        (r"\boxed{\text{B}}", "B"),
        (r"\(\frac12\)", "0.5"),
    ],
)
def test_mathematics_is_compared_by_value(grader: MathGrader, said: str, expected: str) -> None:
    assert grader.grade(said, expected).value == 1.0


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("", "7"),
        (r"\boxed{}", "7"),
        (r"\boxed{7} no, \boxed{8}", "7"),
        ("9^{9^{9^9}}", "7"),
        ("99999999!", "7"),
        ("2^100000000", "7"),
        ("7 " * 1000 + "8", "7"),
        ("__import__('os').system('true')", "7"),
        (r"\boxed{x+1}", "(x+1)^2"),
    ],
)
def test_wrong_and_monstrous_mathematics_is_worth_nothing(
    grader: MathGrader, said: str, expected: str
) -> None:
    assert grader.grade(said, expected).value == 0.0


def test_an_unreadable_expectation_is_the_graders_failure(grader: MathGrader) -> None:
    with pytest.raises(GraderError, match="cannot be parsed"):
        grader.grade("7", "????")


def test_the_last_box_counts_with_its_inner_braces() -> None:
    assert final_answer(r"\boxed{1} and \boxed{\frac{a}{b}} end") == r"\frac{a}{b}"


def worker(timeout_s: float = 30.0, wall_s: float | None = None) -> AbstractContextManager[GraderProcess]:
    return closing(GraderProcess("tests.envs.slow_grader", timeout_s=timeout_s, wall_s=wall_s))


def test_a_grader_that_raises_or_stalls_has_failed_and_the_next_call_is_answered() -> None:
    with worker(wall_s=2.0) as opened:
        with pytest.raises(GraderError, match="timed out"):
            opened.call("never_ends")
        with pytest.raises(GraderError, match="ValueError: no such thing") as raised:
            opened.call("raises")
        assert not isinstance(raised.value, EvaluationExhaustedError)
        assert opened.call("double", number=21) == 42


@pytest.mark.parametrize(
    ("function", "why"),
    [("calculates", "SIGXCPU"), ("dies", "exit code 3"), ("eats_memory", "MemoryError")],
)
def test_a_text_that_uses_up_time_or_memory_is_told_from_a_failing_grader(function: str, why: str) -> None:
    with worker(1.0) as opened:
        with pytest.raises(EvaluationExhaustedError, match=why):
            opened.call(function)
        assert opened.call("double", number=21) == 42


def test_a_worker_knows_nothing_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENROUTER_API_KEY", "secret")
    with worker() as opened:
        assert "OPENROUTER_API_KEY" not in opened.call("environment")
