"""Arithmetic word problems of two to four steps, for machines without the GSM8K data set.

Each is a chain of sentences that change one quantity, with a solution in GSM8K's form that ends with
`#### answer`. They are easier than GSM8K: they exercise the same code and do not replace the benchmark.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

from hermes.envs.tasks.vocabulary import PEOPLE, THINGS

_STEPS = (
    ("{name} buys {n} more.", "+"),
    ("{name} gets {n} as a present.", "+"),
    ("{name} gives {n} to a friend.", "-"),
    ("{name} loses {n}.", "-"),
    ("A neighbour brings enough to make it {n} times as many.", "*"),
    ("{name} shares them equally among {n} boxes and keeps one box.", "/"),
)


@dataclass(frozen=True, slots=True)
class WordProblem:
    question: str
    solution: str
    """Worked out, ending with `#### answer`."""
    answer: str

    @property
    def key(self) -> str:
        return self.question


def word_problem(rng: random.Random) -> WordProblem:
    name, noun = rng.choice(PEOPLE), rng.choice(THINGS)
    count = rng.randint(6, 60)
    story, work = [f"{name} has {count} {noun}s."], []
    used = {count}
    for _ in range(rng.randint(2, 4)):
        sentence, symbol = rng.choice(_STEPS)
        number = _operand(rng, count, symbol)
        if number is None:
            continue
        result = {"+": count + number, "-": count - number, "*": count * number, "/": count // number}[symbol]
        story.append(sentence.format(name=name.split()[0], n=number))
        work.append(f"{count} {symbol} {number} = {result}.")
        used.add(number)
        count = result
    if count in used or not work:
        return word_problem(rng)
    question = f"{' '.join(story)} How many {noun}s does {name.split()[0]} have now?"
    return WordProblem(question, f"{' '.join(work)}\n#### {count}", str(count))


def _operand(rng: random.Random, count: int, symbol: str) -> int | None:
    """A number that keeps the story plausible; None if there is none."""
    if symbol == "+":
        return rng.randint(2, 40)
    if symbol == "-":
        return rng.randint(2, count - 2) if count > 4 else None
    if symbol == "*":
        return rng.randint(2, 4) if count < 500 else None
    divisors = [number for number in range(2, 10) if count % number == 0 and count > number]
    return rng.choice(divisors) if divisors else None
