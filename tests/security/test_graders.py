"""A policy's answer never runs as a program, and what it does to its grader ends with its own grading."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from hermes.batch.grading.worker import EvaluationExhaustedError, GraderProcess
from hermes.envs.rewards.mathematics import MathGrader
from hermes.envs.tasks.reasoning import (
    EVALUATING,
    PuzzleGrader,
    is_arithmetic_of_numbers,
    is_data,
    is_expression,
    puzzles,
)
from hermes.envs.tasks.split import Split
from hermes.sandbox.guards import seccomp
from tests.waiting import wait_until_ended

linux_only = pytest.mark.skipif(seccomp.machine() is None, reason="there is no system call filter here")

_CHR = "+".join(f"[chr][0]({ord(char)})" for char in "import os;os.mkdir('{path}')")
PROGRAMS = [
    f"(exec)({_CHR})",
    "(exec)([chr][0](105)+[chr][0](109))",
    "(open)('{path}','w')",
    "[exec][0]('1')",
    "(S)('exec(1)')",
    "S('__import__(1)')",
    "N('open(1)')",
    "Q('x')",
    "sin('__import__(1)')",
    "sqrt(exec)",
    "(sin)(exec('1'))",
    "x(1)",
    "sin(x)(1)",
    "sin(*[1])",
    "sin(**{})",
    "[f for f in (exec,)]",
    "(lambda: 1)()",
    "''.join('x')",
    "''.__class__.__mro__",
    "f'{open}'",
    "x[0]('1')",
    "(x:=exec)",
    "1 if exec('1') else 2",
    "{'a': exec}",
    "`exec`",
    "ｅｘｅｃ('1')",
    "ｅval('1')",
    "exec\\\n('1')",
    "(eval) ('1')",
    "1\n;exec('1')",
    "[exec]*2 == print",
    "not exec('1')",
    "9**9**9**9",
    "(9**99)**(99*99*99)",
    "9**99999",
    "1e400*1e400",
    "[" * 500 + "]" * 500,
    "'a'*9999999999",
    "[0]*9999999999",
    "1<<99999999",
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_no_program_is_data_or_arithmetic(program: str) -> None:
    text = program.replace("{path}", "x")
    assert not any(check(text) for check in (is_data, is_expression, is_arithmetic_of_numbers)), text


@pytest.mark.parametrize(
    ("check", "texts"),
    [
        (
            is_data,
            ["[[1, 0], [0, 1]]", "['A', 'B']", "1 2 3\n4 5 6", "_ Q _\nQ _ _", "AABCD", "[-1, 2]", "0, 1"],
        ),
        (
            is_expression,
            ["x**2/2 + C", "sin(x) + 2.5", "-exp(x)*cos(x)/2", "x**(3/2)", "2**x", "log(x + 1)", "3*x*y"],
        ),
        (is_arithmetic_of_numbers, ["3 + 4*(2 - 1)", "(99 - 1)/2", "-5 + 7"]),
    ],
)
def test_data_and_arithmetic_pass(check: object, texts: list[str]) -> None:
    assert callable(check)
    for text in texts:
        assert check(text), text


@pytest.fixture(scope="module")
def puzzle_grader() -> Iterator[PuzzleGrader]:
    with closing(PuzzleGrader(timeout_s=30)) as grader:
        yield grader


@pytest.mark.parametrize("dataset", sorted(EVALUATING))
def test_no_answer_runs_in_a_scorer_that_evaluates(
    dataset: str, puzzle_grader: PuzzleGrader, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    puzzle = next(puzzles(dataset, {}, Split.TRAIN, 1))
    for program in PROGRAMS:
        answer = f"<answer>{program.replace('{path}', str(made))}</answer>"
        assert puzzle_grader.grade(puzzle, answer, shaped=True).value == 0.0, program
    assert not made.exists()
    if puzzle.answer is not None:
        assert puzzle_grader.grade(puzzle, f"<answer>{puzzle.answer}</answer>").value == 1.0


def test_an_answer_of_other_numbers_does_not_solve_puzzle24(puzzle_grader: PuzzleGrader) -> None:
    """The package's scorer takes any four numbers in range: 6*4*1*1 would solve every puzzle."""
    for puzzle, _ in zip(puzzles("puzzle24", {}, Split.TRAIN, 1), range(5), strict=False):
        assert puzzle_grader.grade(puzzle, "<answer>6*4*1*1</answer>", shaped=True).value == 0.0


def hostile(timeout_s: float = 20.0) -> GraderProcess:
    return GraderProcess("tests.security.hostile_evaluation", timeout_s)


@linux_only
def test_code_that_runs_in_an_evaluator_reaches_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")
    secret = Path.home() / ".hermes-test-secret"
    with closing(hostile()) as grader:
        outcomes = grader.call("attempts", file=str(tmp_path / "made"), secret=str(secret))
        assert isinstance(outcomes, dict)
        achieved = {name: outcome for name, outcome in outcomes.items() if outcome.startswith("achieved")}
        assert achieved == {}
        assert grader.call("is_patched") is False  # the process that forks is alive
    assert not (tmp_path / "made").exists()


def test_what_an_answer_patches_does_not_live_on() -> None:
    with closing(hostile()) as grader:
        for _ in range(2):
            with pytest.raises(EvaluationExhaustedError):  # its own reply is destroyed
                grader.call("patch_the_module")
            assert grader.call("is_patched") is False


def test_what_is_prepared_before_the_fork_is_found_by_later_calls() -> None:
    with closing(hostile()) as grader:
        assert grader.call("prepared", prepare=("prepare", {"name": "a"})) == ["a"]
        assert grader.call("prepared") == ["a"]


def test_a_costly_answer_is_a_failure_and_does_not_hold_up_the_others() -> None:
    with closing(MathGrader(timeout_s=2)) as grader:
        assert grader.grade(r"\boxed{\frac{1}{2}}", "0.5").success
        costly = r"\boxed{\binom{99999999}{4999999}}"
        results = []
        hog = threading.Thread(target=lambda: results.append(grader.grade(costly, "x+7")))
        hog.start()
        for _ in range(5):
            assert grader.grade(r"\boxed{2\sqrt{3}}", r"\sqrt{12}").success
        assert hog.is_alive() or results
        hog.join()
        assert results[0].value == 0.0 and "SIGXCPU" in results[0].detail


@linux_only
def test_an_evaluator_ends_with_the_process_that_asked(tmp_path: Path) -> None:
    """The evaluating process sees its channel close, whatever ended the other side."""
    import subprocess

    root = Path(__file__).parents[2]
    program = (
        "import sys, time\n"
        "from hermes.batch.grading.worker import GraderProcess\n"
        "grader = GraderProcess('tests.security.hostile_evaluation')\n"
        "grader.call('is_patched')\n"
        "print(grader._process.pid, flush=True)\n"
        "time.sleep(60)\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, env={"PYTHONPATH": str(root)}, text=True
    ) as owner:
        assert owner.stdout is not None
        pid = int(owner.stdout.readline())
        owner.kill()
    wait_until_ended([pid])
