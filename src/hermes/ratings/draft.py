"""A rating as a client words it: a verdict in one word, and what it is about."""

from __future__ import annotations

from dataclasses import dataclass, field, fields
from typing import Any

from hermes.core import JSONObject, RaterSource, Rating, RatingKind, clock, new_id
from hermes.core.rating import PLAIN_STRENGTH, STRENGTHS, preference_value
from hermes.errors import UsageError

_PAIR = {"a": 1.0, "b": -1.0, "tie": 0.0}
_THUMB = {"good": 1.0, "bad": -1.0}
_STEP = {"good": 1.0, "neutral": 0.0, "bad": -1.0}
VERDICTS = "good, bad, 1 to 5; of two: a, b, tie, both_bad; of a step: good, neutral, bad, first_bad"


@dataclass(frozen=True, slots=True)
class RatingDraft:
    trajectory_id: str
    """Of a pair: the trajectory that is called a."""
    verdict: str
    """One of `VERDICTS`."""
    rater: str
    other_id: str | None = None
    """Of a pair: the trajectory that is called b."""
    step_index: int | None = None
    other_step: int | None = None
    per_step: bool = False
    """Whether the verdict is on the step alone and not on the turn that it belongs to."""
    strength: int | None = None
    """Of a or b: 1 slightly, 2 clearly, 3 much better; None: not stated, which counts as 2."""
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
