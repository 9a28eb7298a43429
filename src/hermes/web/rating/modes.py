"""The four ways to rate, and what each decision is as a rating event. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType

from hermes.core import Rating, RatingKind
from hermes.core.clock import now_ms
from hermes.core.rating import STRENGTHS, preference_value
from hermes.store.rating.queues import item_key
from hermes.web.responses import PageError

_ID = re.compile(r"[A-Za-z0-9-]{16,64}")


@dataclass(frozen=True, slots=True)
class RatingButton:
    """A button, and the key that presses it."""

    name: str
    label: str
    key: str
    kind: RatingKind
    value: float


@dataclass(frozen=True, slots=True)
class ModeView:
    name: str
    title: str
    question: str
    decisions: tuple[RatingButton, ...]
    kinds: tuple[RatingKind, ...]
    """Events that count as this way of rating."""

    @property
    def pairwise(self) -> bool:
        return self.name == "pair"

    @property
    def stepwise(self) -> bool:
        return self.name == "step"


_PAIR, _STEP = RatingKind.PAIR, RatingKind.STEP
MODES = MappingProxyType(
    {
        mode.name: mode
        for mode in (
            ModeView(
                "thumb",
                "Thumbs",
                "Is this good?",
                (
                    RatingButton("good", "Good", "y", RatingKind.THUMB, 1.0),
                    RatingButton("bad", "Bad", "n", RatingKind.THUMB, -1.0),
                ),
                (RatingKind.THUMB,),
            ),
            ModeView(
                "score",
                "1 to 5",
                "How good is this?",
                tuple(
                    RatingButton(str(value), label, str(value), RatingKind.SCORE, float(value))
                    for value, label in enumerate(("useless", "poor", "fair", "good", "excellent"), 1)
                ),
                (RatingKind.SCORE,),
            ),
            ModeView(
                "pair",
                "Pairs",
                "Which is better?",
                (
                    RatingButton("left", "Left", "ArrowLeft", _PAIR, preference_value(1)),
                    RatingButton(
                        "much-left", "Left, much", "Shift+ArrowLeft", _PAIR, preference_value(1, STRENGTHS)
                    ),
                    RatingButton("tie", "Tie", "=", _PAIR, 0.0),
                    RatingButton("right", "Right", "ArrowRight", _PAIR, preference_value(-1)),
                    RatingButton(
                        "much-right",
                        "Right, much",
                        "Shift+ArrowRight",
                        _PAIR,
                        preference_value(-1, STRENGTHS),
                    ),
                    RatingButton("both-bad", "Both bad", "x", RatingKind.BOTH_BAD, -1.0),
                ),
                (_PAIR, RatingKind.BOTH_BAD),
            ),
            ModeView(
                "step",
                "Steps",
                "Is this step good?",
                (
                    RatingButton("step-good", "Good", "+", _STEP, 1.0),
                    RatingButton("step-neutral", "Neutral", "0", _STEP, 0.0),
                    RatingButton("step-bad", "Bad", "-", _STEP, -1.0),
                    RatingButton("first-bad", "First bad step", "b", RatingKind.FIRST_BAD, -1.0),
                ),
                (_STEP, RatingKind.FIRST_BAD),
            ),
        )
    }
)


@dataclass(frozen=True, slots=True)
class SentDecision:
    """What the page sends for one key."""

    event_id: str
    """Made by the page: the same decision sent twice is one event."""
    mode: str
    decision: str
    trajectory_id: str
    other_id: str | None = None
    step_index: int | None = None
    comment: str | None = None
    elapsed_ms: float | None = None
    queue: str | None = None
    """The queue that offered it; None: it was drawn from everything."""


def get_mode(name: str) -> ModeView:
    if name not in MODES:
        raise PageError(400, f"there is no way of rating '{name[:40]}'", f"One of: {', '.join(MODES)}.")
    return MODES[name]


def checked_id(event_id: str) -> str:
    """The id of an event, as the page makes it."""
    if not _ID.fullmatch(event_id):
        raise PageError(400, "the rating has no proper id", "Load the page again.")
    return event_id


def make_event(sent: SentDecision, rater: str) -> Rating:
    """PageError (400) names what is missing; the store checks the rest."""
    checked_id(sent.event_id)
    mode = get_mode(sent.mode)
    decision = next((entry for entry in mode.decisions if entry.name == sent.decision), None)
    if decision is None:
        names = ", ".join(entry.name for entry in mode.decisions)
        raise PageError(400, f"'{sent.decision[:40]}' is no decision of {mode.title}", f"One of: {names}.")
    if mode.pairwise and not sent.other_id:
        raise PageError(400, "a pair needs two trajectories")
    if mode.stepwise and sent.step_index is None:
        raise PageError(400, "the rating of a step needs its index")
    return Rating(
        id=sent.event_id,
        trajectory_id=sent.trajectory_id,
        kind=decision.kind,
        value=decision.value,
        rater=rater,
        created_at_ms=now_ms(),
        other_id=sent.other_id if mode.pairwise else None,
        step_index=sent.step_index if mode.stepwise else None,
        comment=sent.comment or None,
        elapsed_ms=sent.elapsed_ms,
        shown_first=sent.trajectory_id if mode.pairwise else None,
        queue=sent.queue,
        item=item_key(sent.trajectory_id, sent.other_id if mode.pairwise else None),
    )
