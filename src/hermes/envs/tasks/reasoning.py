"""The generators and scorers of reasoning-gym, as items with a key, behind a guard.

Some of its scorers pass the answer to `eval` or to a computer algebra parser. Here every scorer runs in a
process that is made for the one answer, and a scorer that evaluates gets only answers whose syntax tree is
plain data or arithmetic (`plain_answers`): any other answer counts as wrong and is never run. An answer on
which a scorer raises, or which uses up the process's time or memory, counts as wrong too. Puzzles whose own
answer would not pass the guard are left out.
"""

from __future__ import annotations

import base64
import itertools
import json
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from hermes.core import JSON, JSONObject
from hermes.core.names import did_you_mean, nearest
from hermes.envs.rewards.result import RewardResult, failed
from hermes.envs.rewards.worker import EvaluationExhaustedError, GraderProcess
from hermes.envs.tasks.plain_answers import is_arithmetic_of_numbers, is_data, is_expression
from hermes.envs.tasks.split import Split, split_of
from hermes.errors import MissingDependencyError, UsageError

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
