"""Rated conversations as tasks: the questions whose answers people rated, with an answer that they liked.

A conversation with one question is a task; longer ones, and ratings of machines, are left out. Whether people
liked an answer follows from `data.preference.verdicts`; without a verdict, from what they chose it over. A
liked answer is shown to the model that reflects, and no text may repeat it. A judge or a reward model scores
new answers.
"""

from __future__ import annotations

from hermes.batch.tasks import Dataset, TaskRow
from hermes.core import RatingKind, Role, canonical_json, content_hash
from hermes.core.rating import RaterSource
from hermes.data.example import Example, load
from hermes.data.preference.verdicts import majority, rated_spans
from hermes.errors import UsageError
from hermes.store import Reader

_PEOPLE = (RaterSource.PERSON,)


def rated_tasks(reader: Reader) -> Dataset:
    """UsageError if nobody rated an answer to a single question."""
    ratings = [rating for rating in reader.all_ratings() if rating.source in _PEOPLE]
    rated_ids = [rated_id for rating in ratings for rated_id in (rating.trajectory_id, rating.other_id)]
    liked_answers: dict[str, str | None] = {}
    for trajectory_id in filter(None, dict.fromkeys(rated_ids)):  # by their first rating
        trajectory = reader.get(trajectory_id)
        questions = [message.content for message in trajectory.messages if message.role is Role.USER]
        if len(questions) == 1:
            answer = trajectory.answer if _is_liked(load(reader, trajectory)) else None
            liked_answers[questions[0]] = answer or liked_answers.get(questions[0])
    if not liked_answers:
        raise UsageError("no answer to a single question is rated", "hermes rate, or bring --tasks FILE")
    rows = [
        TaskRow(content_hash(question)[:16], (question,), expected=answer)
        for question, answer in sorted(liked_answers.items())
    ]
    digest = content_hash(canonical_json([[row.prompts[0], row.expected] for row in rows]))
    return Dataset(tuple(rows), (), digest)


def _is_liked(example: Example) -> bool:
    if spans := rated_spans(example, _PEOPLE):
        return spans[-1].desirable is True
    choices = [
        rating.value if rating.trajectory_id == example.id else -rating.value
        for rating in example.ratings
        if rating.kind is RatingKind.PAIR and rating.source in _PEOPLE
    ]
    return majority(choices).margin > 0
