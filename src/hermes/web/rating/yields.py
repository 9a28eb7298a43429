"""The ratings yield this: rows for DPO, KTO, a reward model and a process reward model, counted by the code
of the trainers; and how far the raters agree.

The count is made again only when a rating was added. It is made by one thread at a time; a request that comes
meanwhile gets the last count, marked as such.
"""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path

from hermes.core import JSONObject, Message
from hermes.core.rating import STEPWISE_KINDS
from hermes.data.example import UnfitError, load
from hermes.data.formats.base import ToolCallStyle
from hermes.data.formats.trl import write_stepwise
from hermes.data.preference.pairs import PreferenceSource
from hermes.data.preference.rows import PreferenceRows, read_rows
from hermes.policies.improve import rating_progress
from hermes.policies.rows import RatingsNeeded
from hermes.ratings.agreement import AgreementReport, report
from hermes.store.browse.reader import BrowseReader

_FROM_RATINGS = (PreferenceSource.CHOICE, PreferenceSource.RATING)
_PREVIEW_CHARS = 1200


@dataclass(frozen=True, slots=True)
class RatingYield:
    events: int = 0
    """Rating events that were counted."""
    dpo: int = 0
    kto: int = 0
    reward_model: int = 0
    stepwise: int = 0
    """For a process reward model: trajectories whose steps are rated from the first on."""
    left_out: Counter[str] = field(default_factory=Counter)
    preview: JSONObject | None = None
    """One preference pair, or one rated span."""
    agreement: AgreementReport | None = None
    """None: nothing is rated."""
    needed: RatingsNeeded | None = None
    """The ratings that `hermes improve` still needs; None: nothing is rated."""
    current: bool = True
    """False: ratings were added since."""


class YieldCounter:
    """Safe to use from any thread."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._last = RatingYield()

    def count(self, reader: BrowseReader, home: Path) -> RatingYield:
        events = reader.rating_events()
        if events == self._last.events:
            return self._last
        if not self._counting.acquire(blocking=False):
            return replace(self._last, current=False)
        try:
            rows = read_rows(reader, origins=_FROM_RATINGS)
            left_out = Counter(rows.left_out)
            self._last = RatingYield(
                events,
                len(rows.pairs),
                sum(span.desirable is not None for span in rows.spans),
                len(rows.pairs) + len(rows.spans),
                _count_stepwise(reader, left_out),
                left_out,
                _preview(rows),
                report(reader.all_ratings()),
                rating_progress(home, reader),
            )
            return self._last
        finally:
            self._counting.release()


def _count_stepwise(reader: BrowseReader, left_out: Counter[str]) -> int:
    """Rows of the format for stepwise supervision; why others are none goes to `left_out`."""
    rated = {rating.trajectory_id for rating in reader.all_ratings() if rating.kind in STEPWISE_KINDS}
    count = 0
    for trajectory_id in rated:
        try:
            rows = write_stepwise(load(reader, reader.get(trajectory_id)), ToolCallStyle.STRUCTURED)
            count += sum(1 for _ in rows)
        except UnfitError as error:
            left_out[str(error)] += 1
    return count


def _preview(rows: PreferenceRows) -> JSONObject | None:
    if rows.pairs:
        pair = rows.pairs[-1]
        return {
            "prompt": _texts(pair.prompt),
            "chosen": _texts(pair.chosen),
            "rejected": _texts(pair.rejected),
        }
    if rows.spans:
        span = rows.spans[-1]
        return {
            "prompt": _texts(span.prompt),
            "completion": _texts(span.completion),
            "label": span.desirable,
            "score": span.score,
        }
    return None


def _texts(messages: tuple[Message, ...]) -> list[JSONObject]:
    """The last messages, shortened: a preview, not the row."""
    return [
        {
            "role": message.role.value,
            "content": message.content[:_PREVIEW_CHARS],
            **({"tool_calls": [call.name for call in message.tool_calls]} if message.tool_calls else {}),
        }
        for message in messages[-4:]
    ]
