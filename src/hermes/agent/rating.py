"""Ratings from the verdicts that users type in a chat."""

from __future__ import annotations

import getpass

from hermes.core import Rating, RatingKind, new_id
from hermes.core.clock import now_ms
from hermes.core.rating import preference_value

_THUMBS = {"good": 1.0, "bad": -1.0}


def make_rating(
    trajectory_id: str,
    verdict: str,
    *,
    rater: str | None = None,
    comment: str | None = None,
    step_index: int | None = None,
) -> Rating:
    """`verdict` is good, bad, or 1 to 5."""
    thumb = verdict in _THUMBS
    return Rating(
        id=new_id(),
        trajectory_id=trajectory_id,
        kind=RatingKind.THUMB if thumb else RatingKind.SCORE,
        value=_THUMBS[verdict] if thumb else float(verdict),
        rater=rater or getpass.getuser(),
        created_at_ms=now_ms(),
        step_index=step_index,
        comment=comment,
    )


def make_choice(
    trajectory_id: str, step_index: int, other_id: str, other_step: int, *, better: bool = True
) -> Rating:
    """The answer at `step_index` against the one at `other_step`, which was shown first."""
    return Rating(
        id=new_id(),
        trajectory_id=trajectory_id,
        kind=RatingKind.PAIR,
        value=preference_value(1 if better else -1),
        rater=getpass.getuser(),
        created_at_ms=now_ms(),
        other_id=other_id,
        step_index=step_index,
        other_step=other_step,
        shown_first=other_id,
    )
