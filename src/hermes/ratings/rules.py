"""Which items a queue has, and in which order: one function a rule, over short lines of the store."""

from __future__ import annotations

import math
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice, pairwise
from statistics import fmean, pstdev

from hermes.core import RaterSource, Rating, RatingKind
from hermes.core.rating import PAIRWISE_KINDS
from hermes.data.export.select import LeftOut, TrajectorySelection, select
from hermes.data.where import parse
from hermes.errors import UsageError
from hermes.ratings.settings import QueueRule, QueueSettings, RatingMode
from hermes.store import Filter, Reader
from hermes.store.rating.attempts import TaskAttempt
from hermes.store.rating.queues import ItemRow, item_key


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
