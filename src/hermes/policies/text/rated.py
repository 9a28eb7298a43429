"""Rated conversations as tasks: the questions whose answers people rated, with an answer that they liked.

A conversation with one question is a task; longer ones, and ratings of machines, are left out. A liked answer
is shown to the model that reflects, and no text may repeat it. A judge or a reward model scores new answers.
"""

from __future__ import annotations

from hermes.batch.tasks import Dataset, TaskRow
from hermes.core import RatingKind, Role, canonical_json, content_hash
from hermes.core.rating import RaterSource, Rating
from hermes.errors import UsageError
from hermes.store import Reader

_GOOD_SCORE = 4


def rated_tasks(reader: Reader) -> Dataset:
    """UsageError if nobody rated an answer to a single question."""
    liked_answers: dict[str, str | None] = {}
    for rating in reader.all_ratings():
        if rating.source is not RaterSource.PERSON:
            continue
        trajectory = reader.get(_better_id(rating))
        questions = [message.content for message in trajectory.messages if message.role is Role.USER]
        if len(questions) != 1:
            continue
        answer = trajectory.answer if _is_good(rating) else None
        liked_answers[questions[0]] = answer or liked_answers.get(questions[0])
    if not liked_answers:
        raise UsageError("no answer to a single question is rated", "hermes rate, or bring --tasks FILE")
    rows = [
        TaskRow(content_hash(question)[:16], (question,), expected=answer)
        for question, answer in sorted(liked_answers.items())
    ]
    digest = content_hash(canonical_json([[row.prompts[0], row.expected] for row in rows]))
    return Dataset(tuple(rows), (), digest)


def _better_id(rating: Rating) -> str:
    is_other = rating.kind is RatingKind.PAIR and rating.value < 0 and rating.other_id is not None
    return str(rating.other_id) if is_other else rating.trajectory_id


def _is_good(rating: Rating) -> bool:
    match rating.kind:
        case RatingKind.PAIR:
            return rating.value != 0
        case RatingKind.SCORE:
            return rating.value >= _GOOD_SCORE
        case _:
            return rating.kind is RatingKind.THUMB and rating.value > 0
