"""Which answer a rating is about, and the score of each answer by the ratings of its trajectory.

A thumb or a score is a verdict on a turn: everything the assistant did after a user message. With a step it
is the turn of that step, without one the last turn. A verdict on a step is one on that message alone; 'first
bad step' is bad for that message and good for the model's messages before it, and says nothing about later
ones. 'Both bad' is bad for the turns of both trajectories.

Of several verdicts on the same messages the newest of each rater counts, and the score is their mean. They
are good or bad if most raters find them so. Where a person rated, rules and models do not count.

Two answers are compared by the raters of both, each by their own two scores: most of them have to prefer the
same one. If nobody rated both, one is better if all its raters find it good, and all raters of the other find
that one bad. Means over different raters are never compared: a rater's 3 can be another's 5. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hermes.core import (
    Message,
    RaterSource,
    Rating,
    RatingKind,
    Role,
    Step,
    StepKind,
    canonical_json,
    content_hash,
)
from hermes.core.rating import STEPWISE_KINDS
from hermes.data.diff import message_content
from hermes.data.example import Example

GOOD, NEUTRAL, BAD = 5.0, 3.0, 1.0


@dataclass(frozen=True, slots=True)
class RatedAnswer:
    """The verdict that counts on one turn."""

    context: str
    """Hash of what the answer answers: all messages before it and the tools; equal contexts, equal hash."""
    start: int
    """Index of the turn's first message."""
    score: float
    """1 to 5; a thumb is 5 or 1."""
    ratings: tuple[Rating, ...] = ()
    """The events that the score is made of; none for an example from a file."""
    scores: tuple[float, ...] = ()
    """The score of each event."""

    @property
    def by_rater(self) -> dict[tuple[str, str], float]:
        """The score of each rater; of an example from a file that of its unknown one."""
        raters = [(rating.source.value, rating.rater) for rating in self.ratings]
        return dict(zip(raters, self.scores, strict=True)) or {("", ""): self.score}


class AnswerComparison(NamedTuple):
    """By how much the first of two answers is better."""

    margin: float
    """Negative: the second is better."""
    problem: str | None = None
    """Why the verdicts do not decide."""


CONTRADICTION = "the raters contradict each other"
_DISJOINT = "no rater rated both, and it is not good against bad"


def compare(first: RatedAnswer, second: RatedAnswer) -> AnswerComparison:
    """Two answers to the same context, by the rule above."""
    left, right = first.by_rater, second.by_rater
    differences = [left[rater] - right[rater] for rater in left if rater in right]
    if differences:
        return majority(differences)
    for sign, better, worse in ((1, left, right), (-1, right, left)):
        gap = min(better.values()) - max(worse.values())
        if min(better.values()) > NEUTRAL > max(worse.values()):
            return AnswerComparison(sign * gap)
    return AnswerComparison(0.0, _DISJOINT)


def majority(preferences: Sequence[float]) -> AnswerComparison:
    """The mean of what raters said, positive for the first of two, if most of those who are not undecided
    agree with its sign."""
    mean = sum(preferences) / len(preferences)
    surplus = sum((value > 0) - (value < 0) for value in preferences)
    if mean * surplus > 0 or not any(preferences):
        return AnswerComparison(mean)
    return AnswerComparison(0.0, CONTRADICTION)


@dataclass(frozen=True, slots=True)
class SpanVerdict:
    """The verdict that counts on some messages of a conversation."""

    start: int
    """Index of the first message."""
    stop: int
    """Index behind the last message."""
    score: float
    """1 to 5."""
    step_index: int | None
    """The step that was rated; None: a verdict on the whole trajectory."""
    ratings: tuple[Rating, ...]
    """The events that the score is made of."""
    scores: tuple[float, ...]
    """The score of each event."""

    @property
    def desirable(self) -> bool | None:
        """None: neither good nor bad, or the raters contradict each other."""
        surplus = sum((score > NEUTRAL) - (score < NEUTRAL) for score in self.scores)
        return None if surplus == 0 else surplus > 0


def rated_spans(example: Example, sources: Collection[RaterSource] | None = None) -> tuple[SpanVerdict, ...]:
    """In the order of the conversation. `sources`: only verdicts of these; None: of people where there are
    any, else of all."""
    events: dict[tuple[int, int], list[tuple[Rating, float]]] = {}
    for rating in example.ratings:  # oldest first
        if sources is None or rating.source in sources:
            for start, stop, score in _verdicts(example, rating):
                events.setdefault((start, stop), []).append((rating, score))
    spans = []
    for (start, stop), verdicts in sorted(events.items()):
        score_of = {rating.id: score for rating, score in verdicts}
        ratings = counting([rating for rating, _ in verdicts])
        scores = tuple(score_of[rating.id] for rating in ratings)
        step_index = _step_index(example, ratings[-1], start, stop)
        spans.append(SpanVerdict(start, stop, sum(scores) / len(scores), step_index, ratings, scores))
    return tuple(spans)


def counting(ratings: Sequence[Rating]) -> tuple[Rating, ...]:
    """The newest event of each rater, people alone where a person rated; oldest first."""
    people = [rating for rating in ratings if rating.source is RaterSource.PERSON]
    newest = {(rating.source, rating.rater): rating for rating in (people or ratings)}
    return tuple(sorted(newest.values(), key=lambda rating: (rating.created_at_ms, rating.id)))


def rated_answers(
    example: Example, sources: Collection[RaterSource] | None = None
) -> tuple[RatedAnswer, ...]:
    """The verdicts on whole turns, in the order of the conversation."""
    messages = example.messages
    answers = [
        RatedAnswer(context_of(example, span.start), span.start, span.score, span.ratings, span.scores)
        for span in rated_spans(example, sources)
        if span.stop == turn_end(messages, span.start)
        and span.start == turn_start(messages, span.start)
        and not all(rating.kind in STEPWISE_KINDS for rating in span.ratings)
    ]
    if not answers and not example.ratings and example.rating is not None:
        start = last_turn(example)  # an example from a file: only the number is known
        if start is not None:
            answers.append(RatedAnswer(context_of(example, start), start, example.rating))
    return tuple(answers)


def rated_turn(example: Example, rating: Rating) -> int | None:
    """Where the rated turn starts among the messages; None if there is no such turn."""
    index = rated_step(example, rating)
    if index is None:
        return last_turn(example)
    position = _position(example, index)
    return None if position is None else turn_start(example.messages, position)


def rated_step(example: Example, rating: Rating) -> int | None:
    """The step of this trajectory that the event names: in a pair each side has its own."""
    return rating.step_index if rating.trajectory_id == example.id else rating.other_step


def last_turn(example: Example) -> int | None:
    """Where what follows the user's last message starts; None if nothing does."""
    messages = example.messages
    last = next((i for i in range(len(messages) - 1, -1, -1) if messages[i].role is Role.ASSISTANT), None)
    if last is None or any(message.role is Role.USER for message in messages[last:]):
        return None
    return turn_start(messages, last)


def turn_start(messages: Sequence[Message], position: int) -> int | None:
    """Where the turn that the assistant's message at `position` belongs to starts; None: at the very
    beginning, so that there is no prompt."""
    start = position
    while start > 0 and messages[start - 1].role in (Role.ASSISTANT, Role.TOOL):
        start -= 1
    while start < position and messages[start].role is Role.TOOL:
        start += 1
    return start if start > 0 else None


def turn_end(messages: Sequence[Message], start: int) -> int:
    """Index behind the last message of the turn: the next message of the user or the system."""
    stop = start
    while stop < len(messages) and messages[stop].role in (Role.ASSISTANT, Role.TOOL):
        stop += 1
    return stop


def context_of(example: Example, start: int) -> str:
    """Without the ids of calls, which are random."""
    before = [_plain(message) for message in example.messages[:start]]
    return content_hash(canonical_json([before, list(example.tools)]))


def conversation_steps(example: Example) -> list[Step]:
    """The steps of the example's messages, one for each."""
    return [step for step in example.trajectory.steps if not step.ephemeral]


def _verdicts(example: Example, rating: Rating) -> Iterator[tuple[int, int, float]]:
    """First message, the one behind the last, and the score, of everything that the event is about."""
    if rating.kind is RatingKind.STEP and rating.step_index is not None:
        position = _position(example, rating.step_index)
        if position:
            yield position, position + 1, NEUTRAL + 2 * rating.value
    elif rating.kind is RatingKind.FIRST_BAD and rating.step_index is not None:
        for position, step in enumerate(conversation_steps(example)):
            if step.kind is StepKind.MODEL and position > 0 and step.index <= rating.step_index:
                yield position, position + 1, BAD if step.index == rating.step_index else GOOD
    elif (score := _score(rating)) is not None and (start := rated_turn(example, rating)) is not None:
        yield start, turn_end(example.messages, start), score


def _score(rating: Rating) -> float | None:
    if rating.kind is RatingKind.THUMB:
        return GOOD if rating.value > 0 else BAD
    if rating.kind is RatingKind.BOTH_BAD:
        return BAD
    return rating.value if rating.kind is RatingKind.SCORE else None


def _position(example: Example, step_index: int) -> int | None:
    """The place of the model's step among the messages."""
    for position, step in enumerate(conversation_steps(example)):
        if step.index == step_index and step.kind is StepKind.MODEL:
            return position
    return None


def _step_index(example: Example, rating: Rating, start: int, stop: int) -> int | None:
    if rating.kind is RatingKind.FIRST_BAD:
        return conversation_steps(example)[start].index
    return rated_step(example, rating)


def _plain(message: Message) -> list[object]:
    role, content, reasoning, calls, name, images = message_content(message)
    return [role, content, reasoning, calls, name, images]
