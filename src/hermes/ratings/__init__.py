"""Ratings from any door: command line, chat, Python, HTTP and the web app. Start at `RatingDesk`.

with RatingDesk.open(home) as desk:
    desk.record(RatingDraft(trajectory_id, "good", rater="ann"))
    item = desk.next_item("morning", "ann")
"""

from hermes.core.rating import RatingDraft
from hermes.ratings.desk import RatingDesk
from hermes.ratings.settings import QueueItem, QueueProgress, QueueRule, QueueSettings, RatingMode

__all__ = [
    "QueueItem",
    "QueueProgress",
    "QueueRule",
    "QueueSettings",
    "RatingDesk",
    "RatingDraft",
    "RatingMode",
]
