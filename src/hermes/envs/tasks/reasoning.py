"""The generators and scorers of reasoning-gym, as items with a key, behind a guard.

Some of its scorers pass the answer to `eval` or to a computer algebra parser. Here every scorer runs in a
process that is made for the one answer, and a scorer that evaluates gets only answers whose syntax tree is
plain data or arithmetic: any other answer counts as wrong and is never run. An answer on
which a scorer raises, or which uses up the process's time or memory, counts as wrong too. Puzzles whose own
answer would not pass the guard are left out.

An answer passes the guard if every node of its tree is listed here, so what the list does not name
(attributes, subscripts, comprehensions, lambda, calls of anything but known functions of mathematics) never
reaches an evaluator.
"""

from __future__ import annotations

import ast
import base64
import itertools
import json
import pickle
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from hermes.batch.grading.worker import EvaluationExhaustedError, GraderProcess
from hermes.core import JSON, JSONObject
from hermes.core.names import did_you_mean, nearest
from hermes.envs.rewards.result import RewardResult, failed
from hermes.envs.tasks.split import Split, split_of
from hermes.errors import MissingDependencyError, UsageError

FUNCTIONS = frozenset(
    {"sin", "cos", "tan", "exp", "log", "ln", "sqrt", "Abs", "abs", "asin", "acos", "atan", "sinh", "cosh"}
)
_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.Pow)
_SYMBOL = re.compile(r"[A-Za-z](_?\d{1,2})?\Z")
_INERT = re.compile(r"[A-Za-z0-9_ \n,|+-]*\Z")
"""Text that as a program is at most a sum of names and numbers."""
_MAX_EXPONENT = 1000
_LARGEST = 10**40
_MAX_NODES = 1500


def is_expression(text: str) -> bool:
    """True for arithmetic over numbers, one-letter symbols and known functions."""
    tree = _parsed(text)
    return tree is not None and _is_arithmetic(tree)


def is_arithmetic_of_numbers(text: str) -> bool:
    """True for arithmetic over whole numbers, with the four operations and brackets only."""
    tree = _parsed(text)
    if tree is None:
        return False
    nodes = list(ast.walk(tree))
    allowed = (ast.BinOp, ast.UnaryOp, ast.Constant, ast.operator, ast.unaryop)
    if not all(isinstance(node, allowed) and not isinstance(node, ast.Pow) for node in nodes):
        return False
    return _is_arithmetic(tree) and all(
        type(node.value) is int for node in nodes if isinstance(node, ast.Constant)
    )


def is_data(text: str) -> bool:
    """True for words and numbers, and for lists of them as Python writes them."""
    if _INERT.match(text):
        return True
    tree = _parsed(text)
    return tree is not None and _is_literal(tree)


def _parsed(text: str) -> ast.expr | None:
    if not text.isascii() or "\\" in text:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    return tree if sum(1 for _ in ast.walk(tree)) <= _MAX_NODES else None


def _is_literal(node: ast.expr) -> bool:
    match node:
        case ast.List(elts=parts) | ast.Tuple(elts=parts):
            return all(_is_literal(part) for part in parts)
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=ast.Constant() as number):
            return _is_number(number)
        case ast.Constant(value=str() | bool()):
            return True
        case ast.Constant():
            return _is_number(node)
    return False


def _is_number(node: ast.Constant) -> bool:
    number = node.value
    return isinstance(number, int | float) and not isinstance(number, bool) and abs(number) < _LARGEST


def _is_arithmetic(node: ast.expr) -> bool:
    match node:
        case ast.Constant():
            return _is_number(node)
        case ast.Name(id=name):
            return _SYMBOL.match(name) is not None
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            return _is_arithmetic(operand)
        case ast.BinOp(left=base, op=ast.Pow(), right=exponent):
            return _is_arithmetic(base) and _is_exponent(exponent)
        case ast.BinOp(left=left, op=operator, right=right):
            return isinstance(operator, _OPERATORS) and _is_arithmetic(left) and _is_arithmetic(right)
        case ast.Call(func=ast.Name(id=name), args=[argument], keywords=[]):
            return name in FUNCTIONS and _is_arithmetic(argument)
    return False


def _is_exponent(node: ast.expr) -> bool:
    """No power within an exponent, and no number in it that makes a result of many digits."""
    nodes = list(ast.walk(node))
    if any(isinstance(inner, ast.Pow) for inner in nodes):
        return False
    numbers = [inner.value for inner in nodes if isinstance(inner, ast.Constant)]
    has_symbol = any(isinstance(inner, ast.Name) for inner in nodes)
    products = sum(isinstance(inner, ast.Mult) for inner in nodes)
    small = all(isinstance(number, int | float) and abs(number) <= _MAX_EXPONENT for number in numbers)
    return _is_arithmetic(node) and small and (has_symbol or products == 0)


EVALUATING: Mapping[str, Callable[[str], bool]] = {
    "binary_matrix": is_data,
    "countdown": is_arithmetic_of_numbers,
    "intermediate_integration": is_expression,
    "n_queens": is_data,
    "polynomial_multiplication": is_expression,
    "puzzle24": is_arithmetic_of_numbers,
    "simple_integration": is_expression,
    "spiral_matrix": is_data,
    "string_insertion": is_data,
}
"""Data sets whose scorers evaluate the answer, and the texts that such a scorer gets."""
_BY_TEXT = frozenset({"game_of_life_halting"})
"""Data sets whose scorers read any text as "True"; here the text itself is compared."""
_GIVEN_NUMBERS = frozenset({"puzzle24"})
"""Data sets whose scorers accept numbers that the puzzle does not give; here they must be the given ones."""
_MAX_CHARS, _MAX_EVALUATED_CHARS = 20_000, 2_000
_PARTICIPATION_SCORE = 0.05
"""Some scorers give this much for any answer at all; it carries no signal."""
_ANSWER = re.compile(r"<answer>(.*?)</answer>", re.DOTALL)
_GIVE_UP_AFTER = 500
_BLOCK = 50


@dataclass(frozen=True, slots=True)
class Puzzle:
    dataset: str
    question: str
    answer: str | None
    """A right answer; None where the data set has none."""
    options: JSONObject
    """The data set's own settings."""
    entry: bytes = field(compare=False, repr=False)
    """The data set's entry, pickled for its scorer. The worker cannot recreate it from the seed: some data
    sets iterate over sets, whose order differs from process to process."""

    @property
    def key(self) -> str:
        return f"{self.dataset} {self.question}"


def puzzles(dataset: str, options: Mapping[str, JSON], split: Split, seed: int) -> Iterator[Puzzle]:
    """Distinct puzzles of a split; ends when the generator is exhausted."""
    keys: set[str] = set()
    misses = 0
    for puzzle in _all_puzzles(dataset, dict(options), seed):
        if misses == _GIVE_UP_AFTER:
            return
        if puzzle.key in keys or split_of(puzzle.key) is not split:
            misses += 1
            continue
        misses = 0
        keys.add(puzzle.key)
        yield puzzle


def _all_puzzles(dataset: str, options: JSONObject, seed: int) -> Iterator[Puzzle]:
    """Endless. Generated in blocks, because some data sets generate their whole size at the start.

    The seeds of blocks are a block apart, because other data sets make entry i of seed s from s + i.
    """
    for block_seed in itertools.count(seed * 10_000_019 % 2**31, _BLOCK):
        for entry in _open(dataset, options, block_seed):
            gold = None if entry["answer"] is None else str(entry["answer"])
            if gold is None or _can_be_scored(dataset, gold):
                yield Puzzle(dataset, entry["question"], gold, options, pickle.dumps(entry))


def extract_answer(text: str) -> str | None:
    """The text between the last pair of answer tags; without tags, the whole text; None if that is empty."""
    tagged = _ANSWER.findall(text)
    return (tagged[-1] if tagged else text).strip() or None


class PuzzleGrader:
    """Scores responses with the data set's own scorer, in one worker process; `close` ends it."""

    def __init__(self, timeout_s: float = 20.0) -> None:
        self._worker = GraderProcess("hermes.envs.tasks.reasoning", timeout_s)

    def grade(self, puzzle: Puzzle, text: str, *, shaped: bool = False) -> RewardResult:
        """1 for a full score, else 0; with `shaped` the score. `score` is a part in either case."""
        solution = extract_answer(text)
        if solution is None:
            return failed("the answer is empty")
        if not _can_be_scored(puzzle.dataset, solution):
            return failed("the answer is not in a form that can be scored")
        try:
            score = self._score(puzzle, solution)
        except EvaluationExhaustedError as error:
            if puzzle.answer is not None:
                self._score(puzzle, puzzle.answer)  # raises if the answer is not to blame
            return failed(f"the answer cannot be evaluated: {error.message}")
        success = float(score >= 1.0)
        partial = min(1.0, score) if score > _PARTICIPATION_SCORE else 0.0
        return RewardResult(partial if shaped else success, {"score": score, "success": success})

    def _score(self, puzzle: Puzzle, solution: str) -> float:
        opened: JSONObject = {"dataset": puzzle.dataset, "options": json.dumps(puzzle.options)}
        entry = base64.b64encode(puzzle.entry).decode()
        prepare = ("open_scorer", opened)
        return float(self._worker.call("score", prepare=prepare, **opened, entry=entry, solution=solution))

    def close(self) -> None:
        self._worker.close()


def _can_be_scored(dataset: str, solution: str) -> bool:
    if dataset in EVALUATING:
        return 0 < len(solution) <= _MAX_EVALUATED_CHARS and EVALUATING[dataset](solution)
    return 0 < len(solution.strip()) <= _MAX_CHARS


def preload() -> None:
    """Imports reasoning-gym, once for all calls."""
    _data_sets()


def score(dataset: str, options: str, entry: str, solution: str) -> float:
    """The data set's own score. Runs in the worker, which bounds its time and memory."""
    generator = open_scorer(dataset, options)
    puzzle_entry = pickle.loads(base64.b64decode(entry))  # noqa: S301  our own process wrote it
    if dataset in _BY_TEXT:
        return float(solution.casefold() == puzzle_entry["answer"].casefold())
    if dataset in _GIVEN_NUMBERS and not _uses_numbers(solution, puzzle_entry["metadata"]["numbers"]):
        return 0.0
    try:
        return float(generator.score_answer(answer=solution, entry=puzzle_entry))
    except (MemoryError, RecursionError):
        raise
    except Exception:  # noqa: BLE001  the scorer cannot read the solution; a right answer never gets here
        return 0.0


def _uses_numbers(solution: str, numbers: Sequence[int]) -> bool:
    return sorted(map(int, re.findall(r"\d+", solution))) == sorted(numbers)


@lru_cache(maxsize=64)
def open_scorer(dataset: str, options: str) -> Any:
    """The data set as its scorer; opened before the fork, so that calls share it."""
    return _open(dataset, json.loads(options), seed=0)


def _data_sets() -> tuple[Mapping[str, Any], Callable[..., Any]]:
    """The package's data sets by name, and the function that opens one."""
    try:
        from reasoning_gym.factory import (  # type: ignore[import-untyped]
            DATASETS,
            create_dataset,
        )
    except ModuleNotFoundError as error:
        raise MissingDependencyError("reasoning-gym", "envs", "The environment reasoning_gym") from error
    return DATASETS, create_dataset


def _open(dataset: str, options: JSONObject, seed: int) -> Any:
    data_sets, create_dataset = _data_sets()
    if dataset not in data_sets:
        hint = did_you_mean(nearest(dataset, data_sets), "reasoning_gym.factory.DATASETS lists them")
        raise UsageError(f"reasoning-gym has no data set '{dataset}'.", hint)
    try:
        return create_dataset(dataset, **options, seed=seed, size=_BLOCK)
    except (TypeError, AssertionError, ValueError) as error:
        raise UsageError(
            f"reasoning-gym's {dataset} does not accept {json.dumps(options)}: {error}",
            "Correct --env.dataset_options.",
        ) from error
