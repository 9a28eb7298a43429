"""Ratings: the events that people, judges, reward rules and reward models append beside a trajectory.

An event is never edited. A later event that `replaces` it takes its place; a WITHDRAW event takes it back.
An event counts as long as no other event replaces it, and a WITHDRAW event says nothing by itself. The id is
made by the client, so that a resent request is the same event.

A `RatingDraft` is a rating as a client words it: a verdict in one word, and what it is about. Every door
(command line, chat, HTTP, web) builds its events with it, so that a verdict has one value.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any

from hermes.core import clock
from hermes.core.ids import new_id
from hermes.core.json import JSONObject
from hermes.errors import UsageError


class RatingKind(StrEnum):
    THUMB = "thumb"
    """value +1 or −1."""
    SCORE = "score"
    """value 1…5."""
    PAIR = "pair"
    """value in −1…1: positive prefers `trajectory_id` to `other_id`, 0 is a tie."""
    STEP = "step"
    """value +1, 0 or −1 for step `step_index`."""
    BOTH_BAD = "both_bad"
    """value −1: neither `trajectory_id` nor `other_id` is acceptable."""
    FIRST_BAD = "first_bad"
    """value −1: step `step_index` is bad, the model's steps before it are good, later ones are unknown."""
    WITHDRAW = "withdraw"
    """value 0: the event in `replaces` no longer counts."""


class RaterSource(StrEnum):
    """Who or what rated."""

    PERSON = "person"
    REWARD = "reward"
    """A reward rule, as environments and batches use them."""
    JUDGE = "judge"
    """A model that was asked."""
    REWARD_MODEL = "reward_model"
    """A trained reward model."""


PAIRWISE_KINDS = frozenset((RatingKind.PAIR, RatingKind.BOTH_BAD))
STEPWISE_KINDS = frozenset((RatingKind.STEP, RatingKind.FIRST_BAD))
_LARGEST_COMMENT = 20_000
_LARGEST_NAME = 200
_MOST_LABELS = 32


STRENGTHS = 3
"""How much better the preferred answer is: 1 slightly, 2 clearly, 3 much."""
PLAIN_STRENGTH = 2
"""The strength of a preference that states none."""


def preference_value(sign: float, strength: int = PLAIN_STRENGTH) -> float:
    """The value of a PAIR rating, the same at every door: command line, HTTP, web, chat."""
    return sign * strength / STRENGTHS


@dataclass(frozen=True, slots=True)
class Rating:
    """A verdict. Append-only; `replaces` withdraws an earlier one."""

    id: str
    trajectory_id: str
    kind: RatingKind
    value: float
    rater: str
    created_at_ms: int
    other_id: str | None = None
    step_index: int | None = None
    """The answer that is rated: a MODEL step. None: the last turn, or, of a pair, where the two part."""
    comment: str | None = None
    elapsed_ms: float | None = None
    replaces: str | None = None
    other_step: int | None = None
    """For a pair, the MODEL step of `other_id`; None: the one at the same place as `step_index`."""
    shown_first: str | None = None
    """For a pair, the id of the trajectory on the left, or above."""
    source: RaterSource = RaterSource.PERSON
    labels: tuple[str, ...] = ()
    """Short words of the rater's own vocabulary: rude, wrong-tool."""
    queue: str | None = None
    """Name of the queue that offered it."""
    item: str | None = None
    """Key of the item in that queue."""


def rating_problem(rating: Rating) -> str | None:
    """Why the event makes no sense by itself, in one sentence; None if it does."""
    kind, value = rating.kind, rating.value
    if not math.isfinite(value) or not _in_range(kind, value):
        return f"a {kind.value} rating has no value {value:g}; it takes {_RANGES[kind]}"
    if (kind in PAIRWISE_KINDS) != (rating.other_id is not None):
        return (
            f"a {kind.value} rating needs the other trajectory"
            if kind in PAIRWISE_KINDS
            else f"a {kind.value} rating is about one trajectory, not about two"
        )
    if rating.other_id == rating.trajectory_id:
        return f"trajectory {rating.trajectory_id} cannot be compared with itself"
    if kind in STEPWISE_KINDS and rating.step_index is None:
        return f"a {kind.value} rating needs the index of a step"
    if rating.other_step is not None and rating.other_id is None:
        return "a step of the other trajectory is named, but no other trajectory"
    if rating.shown_first not in (None, rating.trajectory_id, rating.other_id):
        return f"{rating.shown_first} was not one of the two that were shown"
    if kind is RatingKind.WITHDRAW and rating.replaces is None:
        return "a withdrawal needs the id of the rating that it withdraws"
    return _text_problem(rating)


def _text_problem(rating: Rating) -> str | None:
    if rating.replaces == rating.id:
        return f"rating {rating.id} cannot replace itself"
    for name, text in (("id", rating.id), ("rater", rating.rater)):
        if not text.strip() or len(text) > _LARGEST_NAME:
            return f"the {name} of a rating is 1 to {_LARGEST_NAME} characters"
    if rating.comment is not None and len(rating.comment) > _LARGEST_COMMENT:
        return f"the comment has {len(rating.comment)} characters; the most are {_LARGEST_COMMENT}"
    if len(rating.labels) > _MOST_LABELS or any(
        not label.strip() or len(label) > _LARGEST_NAME for label in rating.labels
    ):
        return f"labels are at most {_MOST_LABELS} words of 1 to {_LARGEST_NAME} characters"
    if rating.elapsed_ms is not None and not 0 <= rating.elapsed_ms < math.inf:
        return f"{rating.elapsed_ms:g} ms is no time that a rating can take"
    return None


_RANGES = {
    RatingKind.THUMB: "+1 (good) or -1 (bad)",
    RatingKind.SCORE: "1 to 5",
    RatingKind.PAIR: "-1 to 1",
    RatingKind.STEP: "+1, 0 or -1",
    RatingKind.BOTH_BAD: "-1",
    RatingKind.FIRST_BAD: "-1",
    RatingKind.WITHDRAW: "0",
}


def _in_range(kind: RatingKind, value: float) -> bool:
    match kind:
        case RatingKind.THUMB:
            return value in (1, -1)
        case RatingKind.SCORE:
            return 1 <= value <= 5
        case RatingKind.PAIR:
            return -1 <= value <= 1
        case RatingKind.STEP:
            return value in (1, 0, -1)
        case RatingKind.WITHDRAW:
            return value == 0
    return value == -1


_PAIR = {"a": 1.0, "b": -1.0, "tie": 0.0}
_THUMB = {"good": 1.0, "bad": -1.0}
_STEP = {"good": 1.0, "neutral": 0.0, "bad": -1.0}
VERDICTS = "good, bad, 1 to 5; of two: a, b, tie, both_bad; of a step: good, neutral, bad, first_bad"


@dataclass(frozen=True, slots=True)
class RatingDraft:
    trajectory_id: str
    """For a pair, the trajectory that is called a."""
    verdict: str
    """One of `VERDICTS`."""
    rater: str
    other_id: str | None = None
    """For a pair, the trajectory that is called b."""
    step_index: int | None = None
    other_step: int | None = None
    per_step: bool = False
    """Whether the verdict is on the step alone and not on the turn that it belongs to."""
    strength: int | None = None
    """How much better a or b is: 1 slightly, 2 clearly, 3 much; None: not stated, which counts as 2."""
    comment: str | None = None
    labels: tuple[str, ...] = ()
    elapsed_ms: float | None = None
    shown_first: str | None = None
    replaces: str | None = None
    queue: str | None = None
    item: str | None = None
    source: RaterSource = RaterSource.PERSON
    id: str = field(default_factory=new_id)
    """Made by the client, before the first attempt to send it."""

    @classmethod
    def from_json(cls, data: object) -> RatingDraft:
        """UsageError if a field is missing, unknown or of another type."""
        if not isinstance(data, dict):
            raise UsageError("a rating is a JSON object", f"fields: {', '.join(_TYPES)}")
        for name, value in data.items():
            if name not in _TYPES:
                raise UsageError(f"a rating has no field '{name}'", f"fields: {', '.join(_TYPES)}")
            if value is not None and (
                not isinstance(value, _TYPES[name]) or (isinstance(value, bool) and bool not in _TYPES[name])
            ):
                raise UsageError(f"the field '{name}' of a rating cannot be {type(value).__name__}")
        for name in ("trajectory_id", "verdict", "rater"):
            if not data.get(name):
                raise UsageError(f"a rating needs the field '{name}'")
        values: dict[str, Any] = {name: value for name, value in data.items() if value is not None}
        if "labels" in values and not all(isinstance(label, str) for label in values["labels"]):
            raise UsageError("the labels of a rating are texts")
        values["labels"] = tuple(values.get("labels", ()))
        return cls(**values)

    def build(self, now_ms: int | None = None) -> Rating:
        """The event; UsageError if the verdict does not fit what it is about."""
        kind, value = self._kind_and_value()
        return Rating(
            id=self.id,
            trajectory_id=self.trajectory_id,
            kind=kind,
            value=value,
            rater=self.rater,
            created_at_ms=clock.now_ms() if now_ms is None else now_ms,
            other_id=self.other_id,
            step_index=self.step_index,
            comment=self.comment or None,
            elapsed_ms=self.elapsed_ms,
            replaces=self.replaces,
            other_step=self.other_step,
            shown_first=self.shown_first,
            source=self.source,
            labels=self.labels,
            queue=self.queue,
            item=self.item,
        )

    def _kind_and_value(self) -> tuple[RatingKind, float]:
        verdict = self.verdict.lower().replace("-", "_")
        if self.strength is not None and verdict not in ("a", "b"):
            raise UsageError(f"'{self.verdict}' has no strength", "only a preference for one of two has")
        if self.other_id is not None:
            return self._pair(verdict)
        if verdict == "first_bad":
            return RatingKind.FIRST_BAD, -1.0
        if self.per_step and verdict in _STEP:
            return RatingKind.STEP, _STEP[verdict]
        if not self.per_step and verdict in _THUMB:
            return RatingKind.THUMB, _THUMB[verdict]
        if not self.per_step and verdict in ("1", "2", "3", "4", "5"):
            return RatingKind.SCORE, float(verdict)
        of = "a step" if self.per_step else "one trajectory"
        raise UsageError(f"'{self.verdict}' is no verdict on {of}", f"one of: {VERDICTS}")

    def _pair(self, verdict: str) -> tuple[RatingKind, float]:
        if verdict == "both_bad":
            return RatingKind.BOTH_BAD, -1.0
        if verdict not in _PAIR:
            raise UsageError(f"'{self.verdict}' is no verdict on two trajectories", f"one of: {VERDICTS}")
        strength = PLAIN_STRENGTH if self.strength is None else self.strength
        if not 1 <= strength <= STRENGTHS:
            raise UsageError(
                f"a strength of {strength} does not exist", "1 slightly, 2 clearly, 3 much better"
            )
        return RatingKind.PAIR, preference_value(_PAIR[verdict], strength)


_TYPES: dict[str, tuple[type, ...]] = {
    item.name: {
        "str": (str,),
        "str | None": (str,),
        "int | None": (int,),
        "float | None": (int, float),
        "bool": (bool,),
        "tuple[str, ...]": (list, tuple),
    }[str(item.type)]
    for item in fields(RatingDraft)
    if item.name != "source"
}


def to_json(rating: Rating) -> JSONObject:
    """As HTTP and `--json` write it."""
    return {
        **{item.name: getattr(rating, item.name) for item in fields(rating)},
        "kind": rating.kind.value,
        "source": rating.source.value,
        "labels": list(rating.labels),
    }
