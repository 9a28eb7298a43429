"""A store of rated answers: two for each question, a short one and a longer one that evades."""

from __future__ import annotations

import random
from pathlib import Path

from hermes.core import Message, Rating, RatingKind, new_id
from hermes.store import Writer
from tests import records


def write_rated_store(
    home: Path,
    questions: int,
    *,
    seed: int = 0,
    random_ratings: bool = False,
    runs: tuple[str, ...] = ("r",),
) -> None:
    """`random_ratings`: a coin decides which answer is good, so that there is nothing to learn.

    With several `runs` each has the same questions, answers and verdicts, under task ids of its own.
    """
    draw = random.Random(seed)
    with Writer(home / "hermes.db") as writer:
        for number in range(questions):
            first, second = draw.randint(2, 9), draw.randint(2, 9)
            short_is_good = draw.random() < 0.5 if random_ratings else True
            for text, good in (
                (f"{first * second}, gladly.", short_is_good),
                (f"Why? Maybe {first * second}.", not short_is_good),
            ):
                messages = [Message.user(f"{first} x {second}? ({number})"), Message.assistant(text)]
                value = 1.0 if good else -1.0
                for run in runs:
                    made = records.record(writer, messages, tools=(), task_id=f"{run}{number}", run_id=run)
                    writer.add_rating(Rating(new_id(), made, RatingKind.THUMB, value, "ann", 1000 + number))
