"""The desk at which ratings are given: record and undo them, take the next item of a queue, see progress.

One object for every door. A recorded rating is durable when the call returns, and recording it again with the
same id changes nothing. Safe to use from several threads; several processes share one store.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import TracebackType

from hermes.core import Rating, RatingKind, canonical_json, clock, content_hash, new_id
from hermes.errors import UsageError
from hermes.ratings.draft import RatingDraft
from hermes.ratings.rules import items_of
from hermes.ratings.settings import QueueItem, QueueProgress, QueueSettings
from hermes.store import Reader, Writer
from hermes.store.rating.queues import TakenItem, TakeRequest


class RatingDesk:
    """Use as a context manager, or with a writer that somebody else closes."""

    def __init__(self, db: Path, writer: Writer, *, owns_writer: bool = False) -> None:
        self._db = db
        self._writer = writer
        self._owns_writer = owns_writer

    @classmethod
    def open(cls, db: Path, redact: Callable[[str], str] = lambda text: text) -> RatingDesk:
        """On a store of its own; `redact` removes secrets from comments."""
        return cls(db, Writer(db, redact), owns_writer=True)

    def close(self) -> None:
        if self._owns_writer:
            self._writer.close()

    def __enter__(self) -> RatingDesk:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def record(self, draft: RatingDraft) -> Rating:
        """UsageError if it names what does not exist, or does not fit; nothing is recorded then."""
        rating = draft.build()
        self._writer.add_rating(rating).result()
        return rating

    def undo(self, rating_id: str, rater: str, *, event_id: str | None = None) -> Rating:
        """The event that takes the rater's rating back: what it had replaced counts again.

        `event_id`: made by the client, so that a resent request undoes once.
        """
        with Reader(self._db) as reader:
            rating = reader.rating(rating_id)
            before = reader.rating(rating.replaces) if rating.replaces is not None else None
        if rating.rater != rater:
            raise UsageError(
                f"rating {rating_id} is by {rating.rater}; {rater} cannot take it back", "rate it yourself"
            )
        identity, now_ms = event_id or new_id(), clock.now_ms()
        if before is not None and before.kind is not RatingKind.WITHDRAW and before.rater == rater:
            event = replace(before, id=identity, created_at_ms=now_ms, replaces=rating_id)
        else:
            event = Rating(
                identity,
                rating.trajectory_id,
                RatingKind.WITHDRAW,
                0.0,
                rater,
                now_ms,
                replaces=rating_id,
                source=rating.source,
                queue=rating.queue,
                item=rating.item,
            )
        self._writer.add_rating(event).result()
        return event

    def create_queue(self, name: str, settings: QueueSettings) -> int:
        """Makes the queue, or adds to it what its rule selects now; the number of items that are new."""
        if not name.strip():
            raise UsageError("a queue needs a name")
        with Reader(self._db) as reader:
            items = items_of(reader, settings)
        return self._writer.create_queue(name, settings.to_text(), items)

    def delete_queue(self, name: str) -> None:
        """Deletes the queue; the ratings that were given in it stay."""
        self._writer.delete_queue(name)

    def queues(self) -> list[str]:
        with Reader(self._db) as reader:
            return reader.queue_names()

    def next_item(self, queue: str, rater: str, besides: tuple[str, ...] = ()) -> QueueItem | None:
        """Leases an item to the rater; the same one again as long as their lease runs. None: all done.

        `besides`: keys of items that the rater has before them and keeps, so that the next can be prepared.
        """
        settings = self.settings(queue)
        request = TakeRequest(
            queue,
            rater,
            clock.now_ms(),
            int(settings.lease_s * 1000),
            settings.raters_per_item,
            settings.repeat_share,
            seed=settings.seed,
            besides=besides,
        )
        lease = self._writer.take_item(request)
        return None if lease is None else _queue_item(lease, queue, settings, rater)

    def renew(self, item: QueueItem, rater: str) -> QueueItem | None:
        """A longer lease on what the rater has before them."""
        return self.next_item(item.queue, rater)

    def release(self, queue: str, item: str, rater: str, *, skip: bool = False) -> None:
        """Gives the item back. `skip`: the rater does not get it again."""
        self._writer.release_item(queue, item, rater, skip=skip).result()

    def settings(self, queue: str) -> QueueSettings:
        with Reader(self._db) as reader:
            return QueueSettings.from_text(reader.queue_settings(queue))

    def progress(self, queue: str) -> QueueProgress:
        with Reader(self._db) as reader:
            settings = QueueSettings.from_text(reader.queue_settings(queue))
            counts = reader.queue_counts(queue, settings.raters_per_item, clock.now_ms())
            raters = reader.queue_raters(queue)
        return QueueProgress(queue, settings, *counts, raters)


def _queue_item(lease: TakenItem, queue: str, settings: QueueSettings, rater: str) -> QueueItem:
    row = lease.row
    shown_first = None
    if row.other_id is not None:
        first, second = sorted((row.trajectory_id, row.other_id))
        digest = content_hash(canonical_json([settings.seed, queue, rater, row.item, lease.turn]))
        shown_first = first if int(digest[-1], 16) % 2 else second
    return QueueItem(
        queue,
        row.item,
        settings.mode,
        row.trajectory_id,
        row.other_id,
        shown_first,
        row.why,
        lease.repeat,
        lease.until_ms,
    )
