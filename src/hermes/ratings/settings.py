"""The settings of a rating queue, and the item that a rater gets from it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from hermes.core import JSONObject, canonical_json
from hermes.errors import UsageError


class QueueRule(StrEnum):
    """In which order things are rated."""

    RANDOM = "random"
    SPREAD = "spread"
    """Groups of attempts whose rewards differ most come first."""
    DISAGREEMENT = "disagreement"
    """Where a person and a judge, rule or reward model differ most."""
    UNCERTAINTY = "uncertainty"
    """Where a reward model knows least: its members differ, or it sees two answers as equal."""
    QUERY = "query"
    """The trajectories that the filters select, oldest first."""


class RatingMode(StrEnum):
    THUMB = "thumb"
    SCORE = "score"
    PAIR = "pair"
    STEP = "step"


@dataclass(frozen=True, slots=True)
class QueueSettings:
    """Fixed when the queue is made."""

    rule: QueueRule = QueueRule.RANDOM
    mode: RatingMode = RatingMode.THUMB
    seed: int = 0
    raters_per_item: int = 1
    repeat_share: float = 0.05
    """Share of items that a rater gets twice, to measure how far they agree with themselves."""
    lease_s: float = 120.0
    limit: int = 10_000
    """Most items."""
    filters: JSONObject = field(default_factory=dict)
    """Fields of the store's filter."""
    where: tuple[str, ...] = ()
    """Conditions as `hermes export --where` takes them."""
    rated_too: bool = False
    """Also what a person has rated already; the rule 'disagreement' always does."""

    def __post_init__(self) -> None:
        for name, good, allowed in (
            ("raters_per_item", self.raters_per_item >= 1, "at least 1"),
            ("repeat_share", 0 <= self.repeat_share < 1, "0 to below 1"),
            ("lease_s", self.lease_s > 0, "more than 0"),
            ("limit", self.limit >= 1, "at least 1"),
        ):
            if not good:
                raise UsageError(f"{name} is {getattr(self, name)}; it must be {allowed}")

    def to_text(self) -> str:
        return canonical_json(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> QueueSettings:
        data = json.loads(text)
        typed = {
            "rule": QueueRule(data["rule"]),
            "mode": RatingMode(data["mode"]),
            "where": tuple(data["where"]),
        }
        return cls(**{**data, **typed})


@dataclass(frozen=True, slots=True)
class QueueItem:
    """The item that one rater has before them."""

    queue: str
    item: str
    mode: RatingMode
    trajectory_id: str
    other_id: str | None
    shown_first: str | None
    """For a pair, which one is on the left; drawn from the queue's seed."""
    why: str
    repeat: bool
    """Whether the same rater had it before. Never shown to them."""
    until_ms: int
    """End of the lease."""


@dataclass(frozen=True, slots=True)
class QueueProgress:
    name: str
    settings: QueueSettings
    items: int
    finished: int
    """Rated by enough raters."""
    leased: int
    ratings: int
    raters: dict[str, int]
    """Rater → ratings."""
