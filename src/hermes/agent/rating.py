"""Ratings from the verdicts that users type."""

from __future__ import annotations

import getpass
import time

from hermes.core import Rating, RatingKind, new_id

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
        created_at_ms=time.time_ns() // 1_000_000,
        step_index=step_index,
        comment=comment,
    )
