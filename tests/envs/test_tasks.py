"""Generated tasks: thousands, the same for the same seed, and none both trained on and held out."""

from __future__ import annotations

import ast
import importlib
import inspect
import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.envs.builtin.calculator import one_step, two_steps
from hermes.envs.builtin.preference import instruction
from hermes.envs.builtin.word_problems import word_problem
from hermes.envs.rewards.number import numeric
from hermes.envs.rewards.result import GraderError
from hermes.envs.tasks import notes
from hermes.envs.tasks.code_problems import code_problem
from hermes.envs.tasks.corpus.pages import Lookup, make_lookup, page_at, page_path, pages, search
from hermes.envs.tasks.functions.requests import functions_of, make_request
from hermes.envs.tasks.jobs.kinds import FileIs, TerminalJob, grade_job, make_job
from hermes.envs.tasks.reasoning import EVALUATING, PuzzleGrader, extract_answer, puzzles
from hermes.envs.tasks.split import Split, distinct, draw, split_of
from hermes.errors import UsageError

MAKERS: dict[str, Callable[[random.Random], Any]] = {
    "one step": one_step,
    "two steps": two_steps,
    "word problem": word_problem,
    "note": notes.make_note,
    "form": notes.make_form_task,
    "job": make_job,
    "code": code_problem,
    "lookup": make_lookup,
    "instruction": instruction,
}


def stream(name: str, split: Split, seed: int) -> Iterator[Any]:
    if name == "request":
        return distinct(lambda rng: make_request(rng, split), split, seed)
    return draw(MAKERS[name], split, seed)


@pytest.mark.parametrize("name", [*MAKERS, "request"])
def test_a_generator_makes_thousands_of_items_that_are_the_same_for_the_same_seed(name: str) -> None:
    count = 1000 if name == "code" else 2500
    items = list(islice(stream(name, Split.TRAIN, 7), count))
    assert len({item.key for item in items}) == count
    assert list(islice(stream(name, Split.TRAIN, 7), 50)) == items[:50]
    assert list(islice(stream(name, Split.TRAIN, 8), 50)) != items[:50]


@pytest.mark.parametrize("name", [*MAKERS, "request"])
def test_no_item_is_both_trained_on_and_held_out(name: str) -> None:
    held_out = list(islice(stream(name, Split.EVAL, 1), 60))
    assert len(held_out) == 60
    trained = {item.key for seed in (1, 2) for item in islice(stream(name, Split.TRAIN, seed), 300)}
    assert trained.isdisjoint(item.key for item in held_out)


@given(st.text(max_size=50))
def test_every_key_has_one_split(key: str) -> None:
    assert split_of(key) is split_of(key)


def test_about_a_tenth_is_held_out() -> None:
    held_out = sum(split_of(str(number)) is Split.EVAL for number in range(10_000))
    assert 900 < held_out < 1100


def test_the_order_of_a_sums_numbers_makes_no_other_sum() -> None:
    keys = {item.key for item in islice(draw(one_step, Split.TRAIN, 3), 500)}
    assert all(key.split()[0].isdigit() and int(key.split()[0]) <= int(key.split()[1]) for key in keys)


@pytest.mark.parametrize("make", [one_step, two_steps])
def test_a_question_never_gives_its_answer_away(make: Callable[[random.Random], Any]) -> None:
    for item in islice(draw(make, Split.TRAIN, 5), 500):
        assert numeric(item.question, item.answer).value == 0.0, item
        assert numeric(item.answer, item.answer).value == 1.0


def test_word_problems_are_solved_by_their_own_solution_and_not_by_their_question() -> None:
    for item in islice(draw(word_problem, Split.TRAIN, 5), 500):
        assert numeric(item.solution, item.answer).value == 1.0
        assert numeric(item.question, item.answer).value == 0.0


def test_no_function_is_met_both_in_training_and_in_evaluation() -> None:
    trained, held_out = (
        {function.name for item in islice(stream("request", split, 1), 1500) for function in item.offered}
        for split in (Split.TRAIN, Split.EVAL)
    )
    assert trained.isdisjoint(held_out)
    assert len(trained) + len(held_out) >= 300
    assert {function.name for function in functions_of(Split.EVAL)} >= held_out


def test_every_step_of_a_code_problem_matters_and_no_example_is_a_test() -> None:
    for item in islice(draw(code_problem, Split.TRAIN, 2), 200):
        assert not [case for case in item.tests if case in item.examples]
        expected = [repr(case.expected) for case in item.tests]
        assert max(map(expected.count, expected)) <= len(expected) / 2


class Disk:
    """A place of files in memory, changed as a job's solution would."""

    def __init__(self, files: dict[str, str], prints: dict[str, str] | None = None) -> None:
        self.files = files
        self.prints = prints or {}

    async def read_text(self, path: str) -> str | None:
        return self.files.get(path)

    async def exists(self, path: str) -> bool:
        return path in self.files

    async def run_command(self, command: str) -> str | None:
        return self.prints.get(command)


async def test_no_job_is_done_by_leaving_or_losing_everything() -> None:
    kinds = set()
    for job in islice(draw(make_job, Split.TRAIN, 4), 400):
        kinds.add(job.kind)
        for files in (dict(job.files), {}):
            graded = await grade_job(job, Disk(files))
            assert (graded.value, graded.parts["progress"]) == (0.0, 0.0), job
    assert len(kinds) == 13


async def test_a_job_counts_what_was_done_and_minds_what_was_not_to_change() -> None:
    job = TerminalJob(
        "x", "copy a to b and c", {"a": "1\n"}, (FileIs("a", "1"), FileIs("b", "1"), FileIs("c", "1")), ""
    )
    half = await grade_job(job, Disk({"a": "1\n", "b": "1  \n"}))
    assert (half.value, half.parts["progress"]) == (0.0, 0.5)
    spoilt = await grade_job(job, Disk({"a": "2", "b": "1", "c": "1"}))
    assert spoilt.value == 0.0
    assert (await grade_job(job, Disk({"a": "1", "b": "1", "c": "1\n\n"}))).value == 1.0


async def test_a_job_that_was_done_before_it_began_is_the_graders_failure() -> None:
    with pytest.raises(GraderError, match="before it began"):
        await grade_job(TerminalJob("x", "nothing", {"a": "1"}, (FileIs("a", "1"),), ""), Disk({"a": "1"}))


def test_every_lookup_can_be_answered_from_its_pages_and_each_page_is_found_by_its_title() -> None:
    for item in islice(draw(make_lookup, Split.TRAIN, 2), 300):
        last = page_at(page_path(item.pages[-1]))
        assert last is not None and item.answer in last.text
        for title in item.pages:
            assert search(title)[0].title == title
        for before, after in zip(item.pages, item.pages[1:], strict=False):
            page = page_at(page_path(before))
            assert page is not None and after in page.text, "one page leads to the next"
    assert len(pages()) == 600


def test_a_lookups_question_does_not_hold_its_answer() -> None:
    for item in islice(draw(make_lookup, Split.TRAIN, 6), 300):
        assert isinstance(item, Lookup)
        assert item.answer.casefold() not in item.question.casefold()


@pytest.mark.parametrize("form", notes.FORMS)
def test_form_counts_only_with_the_right_answer(form: str) -> None:
    for task in islice(draw(notes.make_form_task, Split.TRAIN, 1), 40):
        task = notes.FormTask(task.note, form)
        gold = notes.form_gold(task)
        assert notes.grade_form(task, gold).value == 1.0
        plain = notes.grade_form(task, f"I think it was {task.note.answer}")
        assert 0.0 < plain.value < 0.5, "the right answer in another form is a beginning"
        for wrong in (
            gold.replace(task.note.answer, ""),
            gold.replace(task.note.answer, task.note.distractors[0]),
            gold + " " + task.note.distractors[1],
            notes.form_prompt(task),
            gold + " word" * 60,
            "",
        ):
            assert notes.grade_form(task, wrong).value == 0.0, wrong


def test_each_part_of_a_form_is_worth_something() -> None:
    note = next(draw(notes.make_note, Split.TRAIN, 1))
    task = notes.FormTask(note, "tag")
    steps = [
        note.answer,
        f"<answer>{note.answer}",
        f"so <answer>{note.answer}</answer>",
        notes.form_gold(task),
    ]
    values = [notes.grade_form(task, step).value for step in steps]
    assert values == sorted(values) and len(set(values)) == 4 and values[-1] == 1.0


def test_a_form_nobody_knows_is_the_graders_failure() -> None:
    task = notes.FormTask(next(draw(notes.make_note, Split.TRAIN, 1)), "poem")
    with pytest.raises(GraderError, match="no form 'poem'"):
        notes.grade_form(task, "x")


def test_puzzles_are_seeded_split_by_text_and_solved_by_their_answers() -> None:
    grader = PuzzleGrader(timeout_s=60)
    try:
        for dataset in ("chain_sum", "n_queens", "spell_backward"):
            trained = list(islice(puzzles(dataset, {}, Split.TRAIN, 3), 30))
            assert trained == list(islice(puzzles(dataset, {}, Split.TRAIN, 3), 30))
            held_out = list(islice(puzzles(dataset, {}, Split.EVAL, 3), 5))
            assert {item.key for item in trained}.isdisjoint(item.key for item in held_out)
            for item in (*trained[:2], *held_out[:1]):
                assert grader.grade(item, f"<answer>{item.answer}</answer>").value == 1.0, item
                assert grader.grade(item, "").value == 0.0
                assert grader.grade(item, "<answer>blue</answer>").value == 0.0
    finally:
        grader.close()


@pytest.fixture(scope="module")
def puzzle_grader() -> Iterator[PuzzleGrader]:
    opened = PuzzleGrader(timeout_s=60)
    yield opened
    opened.close()


def test_a_data_set_of_puzzles_gives_as_many_as_are_asked_for_in_both_parts() -> None:
    for dataset in ("chain_sum", "spell_backward"):
        for split, count in ((Split.TRAIN, 300), (Split.EVAL, 100)):
            assert len({item.key for item in islice(puzzles(dataset, {}, split, 0), count)}) == count


def test_a_puzzle_is_scored_as_it_was_set_though_its_data_set_is_another_in_every_process(
    puzzle_grader: PuzzleGrader,
) -> None:
    for item in islice(puzzles("polynomial_multiplication", {}, Split.TRAIN, 1), 8):
        assert puzzle_grader.grade(item, f"<answer>{item.answer}</answer>").value == 1.0, item


def test_an_answer_that_a_scorer_stumbles_over_is_wrong_and_one_it_would_wave_through_too(
    puzzle_grader: PuzzleGrader,
) -> None:
    for dataset in ("prime_factorization", "game_of_life_halting"):
        for item in islice(puzzles(dataset, {}, Split.TRAIN, 1), 4):
            assert puzzle_grader.grade(item, f"<answer>{item.answer}</answer>").value == 1.0
            assert puzzle_grader.grade(item, "<answer>I do not know</answer>").value == 0.0


def test_a_puzzle_that_its_own_answer_would_not_solve_is_left_out() -> None:
    """Some integrals of the package are not worked out, and some strings are used up to nothing."""
    for item in islice(puzzles("intermediate_integration", {}, Split.TRAIN, 1), 40):
        assert item.answer is not None and "Integral(" not in item.answer
    for item in islice(puzzles("string_manipulation", {}, Split.TRAIN, 1), 40):
        assert item.answer


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_data_set_of_the_package_has_puzzles_that_their_own_answers_solve(
    puzzle_grader: PuzzleGrader,
) -> None:
    from reasoning_gym.factory import DATASETS  # type: ignore[import-untyped]

    assert len(DATASETS) > 100
    for dataset in sorted(DATASETS.keys() - {"composite"}):  # which has none of its own
        items = [next(puzzles(dataset, {}, split, 1)) for split in Split]
        for item in items:
            assert puzzle_grader.grade(item, "").value == 0.0
            assert puzzle_grader.grade(item, "<answer>no idea</answer>").value == 0.0, item
            if item.answer is not None:
                assert puzzle_grader.grade(item, f"<answer>{item.answer}</answer>").value == 1.0, item


PROGRAMS = [
    "__import__('os').system('touch {path}')",
    "open('{path}', 'w').write('x')",
    "exec('import os; os.mkdir(\"{path}\")')",
    "[].__class__",
    "().mro()",
    "eval('1')",
    "(lambda: 1)()",
    "9**9**9**9",
    "9**99999",
    "[x for x in iter(int, 1)]; import os",
    "f'{open(1)}'",
]


@pytest.mark.parametrize("program", PROGRAMS)
def test_an_answer_that_could_be_a_program_is_wrong_and_is_never_run(program: str, tmp_path: Any) -> None:
    target = tmp_path / "made"
    answer = program.replace("{path}", str(target))
    grader = PuzzleGrader(timeout_s=60)
    try:
        for dataset in ("n_queens", "countdown", "string_insertion"):
            puzzle = next(puzzles(dataset, {}, Split.TRAIN, 1))
            assert grader.grade(puzzle, f"<answer>{answer}</answer>", shaped=True).value == 0.0
    finally:
        grader.close()
    assert not target.exists()


def test_the_scorers_that_evaluate_are_the_ones_that_are_guarded() -> None:
    """Reads the package's source, so that a new release with another such scorer does not go unnoticed."""
    from reasoning_gym.factory import DATASETS  # type: ignore[import-untyped]

    found = set()
    for name, (cls, _) in DATASETS.items():
        if "score_answer" not in vars(cls):
            continue
        module = importlib.import_module(cls.__module__)
        tree = ast.parse(inspect.getsource(module))
        scorer = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) and node.name == "score_answer"
        ]
        calls = [ast.unparse(node) for node in ast.walk(scorer[0]) if isinstance(node, ast.Call)]
        if any(call.startswith(("eval(answer", "exec(")) for call in calls) or any(
            call.partition("(")[0].endswith("parse_expr") and "answer" in call for call in calls
        ):
            found.add(name)
    assert found <= EVALUATING.keys()


def test_the_last_tagged_answer_counts_and_without_tags_the_text() -> None:
    assert extract_answer("<answer>1</answer> no <answer> 2 </answer>") == "2"
    assert extract_answer(" 42 ") == "42"
    assert extract_answer("<answer> </answer>") is None


def test_an_unknown_puzzle_or_setting_is_refused_by_name() -> None:
    with pytest.raises(UsageError, match="chain_summ"):
        next(puzzles("chain_summ", {}, Split.TRAIN, 0))
    with pytest.raises(UsageError, match="no_such_option"):
        next(puzzles("chain_sum", {"no_such_option": 1}, Split.TRAIN, 0))
