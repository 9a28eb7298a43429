"""Small functions to write, each a chain of steps on a list, with a reference solution and hidden tests.

A problem is accepted only if each of its steps changes the result of some test, so that no shorter function
passes, and only if no constant passes more than half of the tests.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from hermes.core import JSON
from hermes.envs.rewards.tests_pass import Case

TESTS = 12


@dataclass(frozen=True, slots=True)
class _Step:
    """A step in words, for the description, and as Python code that works on `items`."""

    text: str
    code: str


@dataclass(frozen=True, slots=True)
class CodeProblem:
    function: str
    description: str
    examples: tuple[Case, ...]
    """Part of the prompt."""
    tests: tuple[Case, ...]
    """Hidden, and none of them an example."""
    reference: str
    """Source of a solution."""

    @property
    def key(self) -> str:
        """The steps without the function's name."""
        return self.reference.partition("\n")[2]


_NUMBER_STEPS = (
    ("keep only the numbers greater than {k}", "items = [item for item in items if item > {k}]", -5, 12),
    ("keep only the numbers less than {k}", "items = [item for item in items if item < {k}]", -2, 18),
    ("drop the multiples of {k}", "items = [item for item in items if item % {k}]", 2, 7),
    ("keep only the multiples of {k}", "items = [item for item in items if item % {k} == 0]", 2, 5),
    ("multiply each number by {k}", "items = [item * {k} for item in items]", 2, 30),
    ("add {k} to each number", "items = [item + {k} for item in items]", 1, 60),
    ("replace each number by its remainder modulo {k}", "items = [item % {k} for item in items]", 3, 13),
    ("square each number", "items = [item * item for item in items]", 0, 0),
    ("take the absolute value of each number", "items = [abs(item) for item in items]", 0, 0),
    ("drop repeated numbers, keeping the first of each", "items = list(dict.fromkeys(items))", 0, 0),
    ("drop the first {k}", "items = items[{k}:]", 1, 3),
    ("keep every second number, beginning with the first", "items = items[::2]", 0, 0),
)
_NUMBER_ENDS = (
    ("return the sum", "return sum(items)"),
    ("return the largest, or 0 if none is left", "return max(items, default=0)"),
    ("return how many are left", "return len(items)"),
    ("return them sorted from small to large", "return sorted(items)"),
    ("return them in reverse order", "return items[::-1]"),
    ("return the list of running totals", "return [sum(items[: end + 1]) for end in range(len(items))]"),
)
_WORD_STEPS = (
    (
        "keep only the words longer than {k} letters",
        "items = [item for item in items if len(item) > {k}]",
        2,
        5,
    ),
    ("drop the words that contain the letter a", "items = [item for item in items if 'a' not in item]", 0, 0),
    ("spell each word backwards", "items = [item[::-1] for item in items]", 0, 0),
    ("cut each word to its first {k} letters", "items = [item[:{k}] for item in items]", 2, 5),
    ("write each word {k} times in a row", "items = [item * {k} for item in items]", 2, 4),
    ("drop repeated words, keeping the first of each", "items = list(dict.fromkeys(items))", 0, 0),
    ("drop the last {k} words", "items = items[:-{k}]", 1, 3),
)
_WORD_ENDS = (
    ("return them joined by a hyphen", "return '-'.join(items)"),
    ("return them in alphabetical order", "return sorted(items)"),
    ("return the list of their lengths", "return [len(item) for item in items]"),
    (
        "return a dictionary from each word to how often it occurs",
        "return {item: items.count(item) for item in items}",
    ),
)
_WORDS = (
    "apple",
    "river",
    "stone",
    "cloud",
    "amber",
    "at",
    "lake",
    "on",
    "horse",
    "tiger",
    "sea",
    "oak",
    "maple",
    "grass",
    "ant",
    "sun",
    "banana",
)
_NAMES = ("transform_list", "process_items", "reduce_list", "compute_result", "summarise_items")


def code_problem(rng: random.Random) -> CodeProblem:
    while True:
        numbers = rng.random() < 0.7
        steps, end = _chain(rng, *((_NUMBER_STEPS, _NUMBER_ENDS) if numbers else (_WORD_STEPS, _WORD_ENDS)))
        name = rng.choice(_NAMES)
        inputs = _inputs(rng, _numbers if numbers else _words)
        reference = _source(name, [*steps, end])
        results = _results(name, reference, inputs)
        shorter = [_source(name, [*steps[:index], *steps[index + 1 :], end]) for index in range(len(steps))]
        if not _varied(results[2:]) or any(
            _results(name, source, inputs[2:]) == results[2:] for source in shorter
        ):
            continue
        cases = [Case((argument,), result) for argument, result in zip(inputs, results, strict=True)]
        kind = "list of whole numbers" if numbers else "list of words"
        return CodeProblem(
            name, _describe(name, kind, steps, end), tuple(cases[:2]), tuple(cases[2:]), reference
        )


def _varied(results: Sequence[JSON]) -> bool:
    """True if no value is the expected one of more than half of the tests."""
    counts = Counter(map(repr, results))
    return 2 * max(counts.values()) <= len(results)


def _chain(
    rng: random.Random,
    steps: Sequence[tuple[str, str, int, int]],
    ends: Sequence[tuple[str, str]],
) -> tuple[list[_Step], _Step]:
    chain = []
    for text, code, low, high in rng.sample(list(steps), rng.randint(2, 3)):
        number = rng.randint(low, high)
        chain.append(_Step(text.replace("{k}", str(number)), code.replace("{k}", str(number))))
    return chain, _Step(*rng.choice(list(ends)))


def _source(name: str, steps: Sequence[_Step]) -> str:
    return f"def {name}(items):\n" + "".join(f"    {step.code}\n" for step in steps)


def _describe(name: str, kind: str, steps: Sequence[_Step], end: _Step) -> str:
    texts = [step.text for step in (*steps, end)]
    ordered = "".join(f"{number}. {text}\n" for number, text in enumerate(texts, 1))
    return (
        f"Write a Python function {name}(items) that takes a {kind} and does this, in this order:\n{ordered}"
    )


def _results(name: str, source: str, inputs: Sequence[JSON]) -> list[JSON]:
    """Runs our own source, which is built from the tables above and from nothing else."""
    namespace: dict[str, Any] = {}
    exec(compile(source, "<reference>", "exec"), namespace)
    return [namespace[name](list(argument)) for argument in inputs]


def _inputs(rng: random.Random, make: Callable[[random.Random, int], list[JSON]]) -> list[list[JSON]]:
    """Two examples, then the tests: distinct, of several lengths, with an empty list among them."""
    inputs: list[list[JSON]] = []
    sizes = [6, 7, 0, 1, *(rng.randint(2, 14) for _ in range(TESTS - 2))]
    for size in sizes:
        argument = make(rng, size)
        while argument in inputs:
            argument = make(rng, size + 1)
        inputs.append(argument)
    return inputs


def _numbers(rng: random.Random, size: int) -> list[JSON]:
    return [rng.randint(-20, 40) for _ in range(size)]


def _words(rng: random.Random, size: int) -> list[JSON]:
    return [rng.choice(_WORDS) for _ in range(size)]
