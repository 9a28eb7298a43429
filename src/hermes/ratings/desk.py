"""The desk at which ratings are given: record and undo them, take the next item of a queue, see progress.

One object for every door. A recorded rating is durable when the call returns, and recording it again with the
same id changes nothing. Safe to use from several threads; several processes share one store.
"""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from statistics import fmean, pstdev

from hermes.core import RaterSource, Rating, RatingKind, canonical_json, clock, content_hash, new_id
from hermes.core.rating import PAIRWISE_KINDS, RatingDraft
from hermes.data.export.select import LeftOut, TrajectorySelection, select
from hermes.data.where import parse
from hermes.errors import UsageError
from hermes.ratings.settings import QueueItem, QueueProgress, QueueRule, QueueSettings, RatingMode
from hermes.store import Filter, Reader, Writer
from hermes.store.rating.events import TaskAttempt
from hermes.store.rating.queues import ItemRow, TakenItem, TakeRequest, item_key


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

    def __exit__(self, *exception: object) -> None:
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


def items_of(reader: Reader, settings: QueueSettings) -> list[ItemRow]:
    """The items of a new queue; UsageError if there are none."""
    ratings = list(reader.all_ratings())
    if settings.rule is QueueRule.DISAGREEMENT:
        items = _disagreements(
            ratings, {attempt.id for attempt in _attempts(reader, settings)}, settings.mode
        )
    else:
        people = {item_key(r.trajectory_id, r.other_id) for r in ratings if r.source is RaterSource.PERSON}
        ordered = _RULES[settings.rule](_attempts(reader, settings), settings)
        items = (row for row in ordered if settings.rated_too or row.item not in people)
    return list(islice(items, settings.limit))


def _attempts(reader: Reader, settings: QueueSettings) -> list[TaskAttempt]:
    try:
        filters = Filter(**settings.filters)
    except TypeError as error:
        raise UsageError(f"the filter of the queue is not understood: {error}") from error
    attempts = reader.attempts(filters)
    if not settings.where:
        return attempts
    conditions = tuple(parse(text) for text in settings.where)
    selection = TrajectorySelection(filters, where=conditions, only_completed=False)
    ids = {example.id for example in select(reader, selection, LeftOut())}
    return [attempt for attempt in attempts if attempt.id in ids]


def _random(attempts: Sequence[TaskAttempt], settings: QueueSettings) -> Iterator[ItemRow]:
    rows = list(_query(attempts, settings))
    random.Random(settings.seed).shuffle(rows)
    return iter([row._replace(why="drawn at random") for row in rows])


def _query(attempts: Sequence[TaskAttempt], settings: QueueSettings) -> Iterator[ItemRow]:
    if settings.mode is not RatingMode.PAIR:
        yield from (_single(attempt, "matches the query") for attempt in attempts)
        return
    for group in _groups(attempts):
        for first, second in pairwise(group):
            yield _pair(first, second, "two attempts at one task")


def _spread(attempts: Sequence[TaskAttempt], settings: QueueSettings) -> Iterator[ItemRow]:
    """The best and the worst of a group; where single trajectories are rated, all of a group."""
    groups = []
    for group in _groups(attempts):
        rewarded = sorted(
            (attempt for attempt in group if attempt.reward is not None), key=lambda a: (a.reward, a.id)
        )
        spread = pstdev([attempt.reward or 0.0 for attempt in rewarded]) if rewarded else 0.0
        if spread > 0:
            groups.append((spread, rewarded))
    groups.sort(key=lambda entry: (-entry[0], entry[1][0].id))
    for spread, rewarded in groups:
        reason = f"rewards of the group differ by {spread:.3g}"
        if settings.mode is RatingMode.PAIR:
            yield _pair(rewarded[-1], rewarded[0], reason)
        else:
            yield from (_single(attempt, reason) for attempt in rewarded)


def _uncertainty(attempts: Sequence[TaskAttempt], settings: QueueSettings) -> Iterator[ItemRow]:
    scored = [attempt for attempt in attempts if attempt.model_reward is not None]
    entries: list[tuple[float, ItemRow]] = []
    if settings.mode is RatingMode.PAIR:
        for group in _groups(scored):
            ranked = sorted(group, key=lambda a: (a.model_reward or 0.0, a.id))
            for low, high in pairwise(ranked):
                chance = 1 / (1 + math.exp(-((high.model_reward or 0.0) - (low.model_reward or 0.0))))
                row = _pair(low, high, f"the reward model sees {chance:.0%} for the better one")
                entries.append((chance, row))
    else:
        for attempt in scored:
            if attempt.model_spread is not None:
                reason = f"members of the reward model differ by {attempt.model_spread:.3g}"
                entries.append((-attempt.model_spread, _single(attempt, reason)))
    entries.sort(key=lambda entry: (entry[0], entry[1].item))
    return iter([row for _, row in entries])


def _disagreements(ratings: Iterable[Rating], ids: set[str], mode: RatingMode) -> Iterator[ItemRow]:
    people: dict[str, list[float]] = defaultdict(list)
    machines: dict[str, list[float]] = defaultdict(list)
    targets: dict[str, tuple[str, str | None]] = {}
    for rating in ratings:
        value = _comparable(rating)
        if value is None or (rating.kind in PAIRWISE_KINDS) != (mode is RatingMode.PAIR):
            continue
        first, second = rating.trajectory_id, rating.other_id
        if first in ids and (second is None or second in ids):
            key = item_key(first, second)
            (people if rating.source is RaterSource.PERSON else machines)[key].append(value)
            targets[key] = (min(first, second), max(first, second)) if second is not None else (first, None)
    entries = [
        (abs(fmean(people[key]) - fmean(machines[key])), key)
        for key in targets
        if key in people and key in machines
    ]
    for distance, key in sorted(entries, key=lambda entry: (-entry[0], entry[1])):
        if distance > 0:
            yield ItemRow(key, *targets[key], f"people and machines differ by {distance:.3g}")


def _comparable(rating: Rating) -> float | None:
    """A number in which two verdicts on one thing can be compared."""
    if rating.kind is RatingKind.THUMB:
        return 5.0 if rating.value > 0 else 1.0
    if rating.kind is RatingKind.SCORE:
        return rating.value
    if rating.kind is RatingKind.PAIR:
        return rating.value if rating.trajectory_id < (rating.other_id or "") else -rating.value
    return None


def _groups(attempts: Iterable[TaskAttempt]) -> list[list[TaskAttempt]]:
    """Attempts at one task, where there are several."""
    tasks: dict[str, list[TaskAttempt]] = defaultdict(list)
    for attempt in attempts:
        tasks[attempt.task].append(attempt)
    return [group for group in tasks.values() if len(group) > 1]


def _single(attempt: TaskAttempt, why: str) -> ItemRow:
    return ItemRow(item_key(attempt.id), attempt.id, None, why)


def _pair(first: TaskAttempt, second: TaskAttempt, why: str) -> ItemRow:
    return ItemRow(item_key(first.id, second.id), first.id, second.id, why)


_RULES: dict[QueueRule, Callable[[Sequence[TaskAttempt], QueueSettings], Iterator[ItemRow]]] = {
    QueueRule.RANDOM: _random,
    QueueRule.SPREAD: _spread,
    QueueRule.UNCERTAINTY: _uncertainty,
    QueueRule.QUERY: _query,
}
