"""The four ways to rate: their questions, buttons and keys. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import MappingProxyType

from hermes.core import RatingKind
from hermes.core.rating import STRENGTHS
from hermes.web.responses import PageError

_ID = re.compile(r"[A-Za-z0-9-]{16,64}")


@dataclass(frozen=True, slots=True)
class RatingButton:
    """A button, and the key that presses it."""

    name: str
    label: str
    key: str
    verdict: str
    """As `RatingDraft` words it; the trajectory on the left is a."""
    strength: int | None = None


@dataclass(frozen=True, slots=True)
class ModeView:
    name: str
    title: str
    question: str
    decisions: tuple[RatingButton, ...]
    kinds: tuple[RatingKind, ...]
    """Events that count as this way of rating."""

    def button(self, name: str) -> RatingButton:
        """PageError (400): there is none of that name."""
        button = next((entry for entry in self.decisions if entry.name == name), None)
        if button is None:
            names = ", ".join(entry.name for entry in self.decisions)
            raise PageError(400, f"'{name[:40]}' is no decision of {self.title}", f"One of: {names}.")
        return button

    @property
    def pairwise(self) -> bool:
        return self.name == "pair"

    @property
    def stepwise(self) -> bool:
        return self.name == "step"


MODES = MappingProxyType(
    {
        mode.name: mode
        for mode in (
            ModeView(
                "thumb",
                "Thumbs",
                "Is this good?",
                (
                    RatingButton("good", "Good", "y", "good"),
                    RatingButton("bad", "Bad", "n", "bad"),
                ),
                (RatingKind.THUMB,),
            ),
            ModeView(
                "score",
                "1 to 5",
                "How good is this?",
                tuple(
                    RatingButton(str(value), label, str(value), str(value))
                    for value, label in enumerate(("useless", "poor", "fair", "good", "excellent"), 1)
                ),
                (RatingKind.SCORE,),
            ),
            ModeView(
                "pair",
                "Pairs",
                "Which is better?",
                (
                    RatingButton("left", "Left", "ArrowLeft", "a"),
                    RatingButton("much-left", "Left, much", "Shift+ArrowLeft", "a", STRENGTHS),
                    RatingButton("tie", "Tie", "=", "tie"),
                    RatingButton("right", "Right", "ArrowRight", "b"),
                    RatingButton("much-right", "Right, much", "Shift+ArrowRight", "b", STRENGTHS),
                    RatingButton("both-bad", "Both bad", "x", "both_bad"),
                ),
                (RatingKind.PAIR, RatingKind.BOTH_BAD),
            ),
            ModeView(
                "step",
                "Steps",
                "Is this step good?",
                (
                    RatingButton("step-good", "Good", "+", "good"),
                    RatingButton("step-neutral", "Neutral", "0", "neutral"),
                    RatingButton("step-bad", "Bad", "-", "bad"),
                    RatingButton("first-bad", "First bad step", "b", "first_bad"),
                ),
                (RatingKind.STEP, RatingKind.FIRST_BAD),
            ),
        )
    }
)


def get_mode(name: str) -> ModeView:
    if name not in MODES:
        raise PageError(400, f"there is no way of rating '{name[:40]}'", f"One of: {', '.join(MODES)}.")
    return MODES[name]


def checked_id(event_id: str) -> str:
    """The id of an event, as the page makes it."""
    if not _ID.fullmatch(event_id):
        raise PageError(400, "the rating has no proper id", "Load the page again.")
    return event_id
