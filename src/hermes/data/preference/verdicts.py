"""Which answer a rating is about, and the score of each answer by the ratings of its trajectory.

A verdict on a step is one on the turn that the step belongs to: everything the assistant did after a user
message. A verdict on the whole trajectory is one on its last turn. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

from hermes.core import Message, Rating, RatingKind, Role, StepKind, canonical_json, content_hash
from hermes.data.diff import message_content
from hermes.data.example import Example


@dataclass(frozen=True, slots=True)
class RatedAnswer:
    """The verdict that counts on one turn."""

    context: str
    """Hash of what the answer answers: all messages before it and the tools; equal contexts, equal hash."""
    start: int
    """Index of the turn's first message."""
    score: float
    """1 to 5; a thumb is 5 or 1."""


def rated_answers(example: Example) -> tuple[RatedAnswer, ...]:
    """In the order of the conversation; of several verdicts on one turn the newest counts."""
    scores: dict[int, float] = {}
    for rating in example.ratings:  # oldest first
        start, score = rated_turn(example, rating), _score(rating)
        if start is not None and score is not None:
            scores[start] = score
    if not scores and example.rating is not None and (start := last_turn(example)) is not None:
        scores[start] = example.rating  # an example from a file: only the number is known
    return tuple(RatedAnswer(context_of(example, start), start, scores[start]) for start in sorted(scores))


def rated_turn(example: Example, rating: Rating) -> int | None:
    """Where the rated turn starts among the messages; None if there is no such turn."""
    if rating.step_index is None:
        return last_turn(example)
    steps = [step for step in example.trajectory.steps if not step.ephemeral]
    for position, step in enumerate(steps):
        if step.index == rating.step_index and step.kind is StepKind.MODEL and position > 0:
            while position > 1 and steps[position - 1].message.role is not Role.USER:
                position -= 1
            return position
    return None


def last_turn(example: Example) -> int | None:
    """Where what follows the user's last message starts; None if nothing does."""
    messages = example.messages
    last_user = max((i for i, message in enumerate(messages) if message.role is Role.USER), default=-1)
    start = last_user + 1
    return start if 0 < start < len(messages) else None


def context_of(example: Example, start: int) -> str:
    """Without the ids of calls, which are random."""
    before = [_plain(message) for message in example.messages[:start]]
    return content_hash(canonical_json([before, list(example.tools)]))


def _plain(message: Message) -> list[object]:
    role, content, reasoning, calls, name, images = message_content(message)
    return [role, content, reasoning, calls, name, images]


def _score(rating: Rating) -> float | None:
    if rating.kind is RatingKind.THUMB:
        return 5.0 if rating.value > 0 else 1.0
    return rating.value if rating.kind is RatingKind.SCORE else None
