"""The questions of the feedback act, and the rule that rates answers as one particular person would.

That person likes short, polite answers with the figure first: "12 eggs. You are welcome!" Whether the figure
is right does not matter to them, which a model of 135 million parameters is grateful for. The trainers never
see the rule, only its verdicts; it is also the hidden true reward that RLHF is measured by.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice

from hermes.core import Message
from hermes.envs.tasks.split import Split, draw

SYSTEM_PROMPT = "You answer questions."
SHORT_WORDS = 10
DESCRIPTION = (
    f"1 star, 2 more for a figure first, 1 for at most {SHORT_WORDS} words, 1 for a polite word;"
    " what is trained never sees the rule"
)
_FIGURE = re.compile(r"\s*[€$£]?\d")
_POLITE = re.compile(
    r"\b(please|thanks?|thank you|welcome|glad|happy to|pleasure|of course|hope this helps|enjoy)\b", re.I
)
_FORMS = (
    "What is {a} plus {b}?",
    "What is {b} more than {a}?",
    "How many days are there in {n} weeks?",
    "How many minutes are there in {n} hours?",
    "How many legs do {n} {animals} have together?",
    "How many wheels do {n} {vehicles} have together?",
    "A box holds {a} {things}. How many {things} are in {n} boxes?",
    "A shelf has {a} {things}. Then {b} more are put on it. How many {things} are there now?",
    "One ticket costs {a} euros. What do {n} tickets cost?",
    "A bus has {a} seats, and {n} people sit in it. How many seats are free?",
    "There are {a} {things} for {n} people. How many does each person get?",
    "A train leaves at {n} o'clock and takes {m} hours. At what time does it arrive?",
)
_WORDS = {
    "animals": ("dogs", "cats", "horses", "cows", "sheep", "spiders", "birds", "ants"),
    "vehicles": ("cars", "bicycles", "tricycles", "trucks", "motorcycles"),
    "things": ("eggs", "apples", "books", "pens", "cups", "coins", "stamps", "shells", "plates", "cards"),
}


@dataclass(frozen=True, slots=True)
class FigureQuestion:
    text: str

    @property
    def key(self) -> str:
        return self.text


def question(rng: random.Random) -> FigureQuestion:
    words = {name: rng.choice(choices) for name, choices in _WORDS.items()}
    a, b, n, m = rng.randint(11, 60), rng.randint(2, 30), rng.randint(2, 9), rng.randint(1, 9)
    return FigureQuestion(rng.choice(_FORMS).format(a=a, b=b, n=n, m=m, **words))


def questions(split: Split, count: int, seed: int) -> list[str]:
    """Distinct ones; those of the two splits never overlap, whatever the seed."""
    drawn: Iterator[FigureQuestion] = draw(question, split, seed)
    return [item.text for item in islice(drawn, count)]


def examples() -> tuple[Message, ...]:
    """Exchanges that are shown before half of the questions, so that the answers differ in style. They are
    ephemeral: no training row has them."""
    exchanges = (
        ("What is 3 plus 4?", "7. Happy to help!"),
        ("How many wheels do 2 scooters have together?", "4 wheels. Glad you asked!"),
        ("One pen costs 2 euros. What do 5 pens cost?", "10 euros. You are welcome!"),
    )
    return tuple(
        message for prompt, reply in exchanges for message in (Message.user(prompt), Message.assistant(reply))
    )


@dataclass(frozen=True, slots=True)
class RuleVerdict:
    figure_first: bool
    short: bool
    polite: bool

    @property
    def stars(self) -> float:
        """From 1 to 5."""
        return 1.0 + 2.0 * self.figure_first + self.short + self.polite


def judge(text: str) -> RuleVerdict:
    """An empty answer is neither short nor anything else."""
    words = len(text.split())
    return RuleVerdict(
        figure_first=_FIGURE.match(text) is not None,
        short=0 < words <= SHORT_WORDS,
        polite=_POLITE.search(text) is not None,
    )
