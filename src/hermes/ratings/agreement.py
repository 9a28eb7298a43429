"""How far raters agree: Krippendorff's alpha, Cohen's kappa, position bias, self-agreement, seconds an item.

Pure functions over plain values, then `report` over rating events. Alpha is one minus the observed over the
expected disagreement, with a distance that fits the scale; it takes any number of raters and missing values.
Kappa compares two raters who both rated an item.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import combinations
from statistics import median

from hermes.core import RaterSource, Rating, RatingKind
from hermes.core.stats import wilson
from hermes.store.rating.queues import item_key


class Scale(StrEnum):
    NOMINAL = "nominal"
    ORDINAL = "ordinal"
    INTERVAL = "interval"


@dataclass(frozen=True, slots=True)
class Share:
    """A proportion with its 95 % interval (Wilson)."""

    count: int
    total: int

    @property
    def value(self) -> float | None:
        return self.count / self.total if self.total else None

    @property
    def interval(self) -> tuple[float, float]:
        if not self.total:
            return 0.0, 1.0
        rate = wilson(self.count, self.total)
        return rate.low, rate.high


def krippendorff_alpha(units: Iterable[Sequence[float]], scale: Scale = Scale.NOMINAL) -> float | None:
    """`units`: for each item the values of those who rated it. None: fewer than two items' worth of values.

    Items with one value say nothing about agreement and are left out. All values equal gives 1.
    """
    pairable = [list(unit) for unit in units if len(unit) > 1]
    totals = Counter(value for unit in pairable for value in unit)
    count = sum(totals.values())
    if count < 2:
        return None
    distance = _distance(scale, totals)
    observed = sum(
        2 * sum(distance(a, b) for a, b in combinations(unit, 2)) / (len(unit) - 1) for unit in pairable
    )
    values = sorted(totals)
    expected = sum(2 * totals[a] * totals[b] * distance(a, b) for a, b in combinations(values, 2))
    if expected == 0:
        return 1.0
    return 1 - (count - 1) * observed / expected


def cohen_kappa(both: Iterable[tuple[Hashable, Hashable]]) -> float | None:
    """The kappa of two raters' categories; None without items, 1 if both always say the same one."""
    pairs = list(both)
    if not pairs:
        return None
    n = len(pairs)
    agreed = sum(a == b for a, b in pairs) / n
    left, right = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    by_chance = sum(left[category] * right[category] for category in left) / (n * n)
    return 1.0 if by_chance == 1 else (agreed - by_chance) / (1 - by_chance)


def _distance(scale: Scale, totals: Mapping[float, int]) -> Callable[[float, float], float]:
    if scale is Scale.NOMINAL:
        return lambda a, b: float(a != b)
    if scale is Scale.INTERVAL:
        return lambda a, b: (a - b) ** 2
    ranks: dict[float, float] = {}
    below = 0
    for value in sorted(totals):
        ranks[value] = below + totals[value] / 2
        below += totals[value]
    return lambda a, b: (ranks[a] - ranks[b]) ** 2


@dataclass(frozen=True, slots=True)
class RaterFigures:
    rater: str
    source: RaterSource
    ratings: int
    seconds: float | None
    """Median seconds an item; None if nothing was timed."""
    first_shown: Share
    """How often the winner of their choices between two was the one shown first."""
    repeats: Share
    """How often both verdicts on an item that they rated twice were the same."""


@dataclass(frozen=True, slots=True)
class ScaleAgreement:
    """How far the ratings of one kind agree."""

    kind: RatingKind
    scale: Scale
    items: int
    """Rated by at least two."""
    alpha: float | None
    kappa: dict[tuple[str, str], float]
    """Two raters → kappa, where both rated at least one item."""


@dataclass(frozen=True, slots=True)
class AgreementReport:
    raters: tuple[RaterFigures, ...]
    scales: tuple[ScaleAgreement, ...]
    """Among people."""
    machines: dict[str, Share]
    """Rule, judge or reward model → how often its verdict has the direction of the people's."""
    first_shown: Share
    """Over all people: how often the winner was the one shown first. 0.5 is no bias."""


_SCALES = {
    RatingKind.THUMB: Scale.NOMINAL,
    RatingKind.SCORE: Scale.ORDINAL,
    RatingKind.PAIR: Scale.NOMINAL,
    RatingKind.STEP: Scale.NOMINAL,
}
Key = tuple[RatingKind, str, int | None]


def report(ratings: Iterable[Rating]) -> AgreementReport:
    """Over the ratings that count, oldest first."""
    events = list(ratings)
    people = [rating for rating in events if rating.source is RaterSource.PERSON]
    raters = sorted({(rating.source, rating.rater) for rating in events})
    return AgreementReport(
        tuple(_figures(events, source, rater) for source, rater in raters),
        tuple(agreement for kind in _SCALES if (agreement := _scale(people, kind)).items or agreement.kappa),
        _machines(events),
        _first_shown(people),
    )


def category(rating: Rating) -> float:
    """The category that two raters must share to agree: of a pair the sign, seen from the smaller id."""
    if rating.kind is RatingKind.BOTH_BAD:
        return -2.0
    if rating.kind is RatingKind.PAIR:
        value = rating.value if rating.trajectory_id < (rating.other_id or "") else -rating.value
        return math.copysign(1.0, value) if value else 0.0
    return rating.value


def _key(rating: Rating) -> Key | None:
    kind = RatingKind.PAIR if rating.kind is RatingKind.BOTH_BAD else rating.kind
    if kind not in _SCALES:
        return None
    return kind, item_key(rating.trajectory_id, rating.other_id), rating.step_index


def _by_item(events: Iterable[Rating]) -> dict[Key, dict[str, list[Rating]]]:
    items: dict[Key, dict[str, list[Rating]]] = defaultdict(lambda: defaultdict(list))
    for rating in events:
        key = _key(rating)
        if key is not None:
            items[key][rating.rater].append(rating)
    return items


def _figures(events: Sequence[Rating], source: RaterSource, rater: str) -> RaterFigures:
    ratings = [rating for rating in events if rating.rater == rater and rating.source is source]
    times = [rating.elapsed_ms / 1000 for rating in ratings if rating.elapsed_ms is not None]
    twice = [events for raters in _by_item(ratings).values() for events in raters.values() if len(events) > 1]
    same = sum(category(events[0]) == category(events[1]) for events in twice)
    return RaterFigures(
        rater,
        source,
        len(ratings),
        median(times) if times else None,
        _first_shown(ratings),
        Share(same, len(twice)),
    )


def _scale(people: Sequence[Rating], kind: RatingKind) -> ScaleAgreement:
    items = [raters for key, raters in _by_item(people).items() if key[0] is kind]
    newest = [{rater: category(events[-1]) for rater, events in raters.items()} for raters in items]
    shared = [values for values in newest if len(values) > 1]
    both: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for values in shared:
        for a, b in combinations(sorted(values), 2):
            both[a, b].append((values[a], values[b]))
    kappa = {names: value for names, pairs in both.items() if (value := cohen_kappa(pairs)) is not None}
    scale = _SCALES[kind]
    alpha = krippendorff_alpha([list(values.values()) for values in shared], scale)
    return ScaleAgreement(kind, scale, len(shared), alpha, kappa)


def _first_shown(ratings: Iterable[Rating]) -> Share:
    decided = [r for r in ratings if r.kind is RatingKind.PAIR and r.value and r.shown_first is not None]
    won = sum((r.trajectory_id if r.value > 0 else r.other_id) == r.shown_first for r in decided)
    return Share(won, len(decided))


def _machines(events: Sequence[Rating]) -> dict[str, Share]:
    """Direction: good or bad of one trajectory or step, which of two. Neutral verdicts do not count."""
    people: dict[tuple[str, int | None], list[float]] = defaultdict(list)
    for rating in events:
        if rating.source is RaterSource.PERSON and (direction := _direction(rating)):
            people[item_key(rating.trajectory_id, rating.other_id), rating.step_index].append(direction)
    agreed: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for rating in events:
        direction = _direction(rating)
        if rating.source is RaterSource.PERSON or not direction:
            continue
        verdict = sum(people.get((item_key(rating.trajectory_id, rating.other_id), rating.step_index), ()))
        if verdict:
            total[rating.rater] += 1
            agreed[rating.rater] += (verdict > 0) == (direction > 0)
    return {rater: Share(agreed[rater], total[rater]) for rater in sorted(total)}


def _direction(rating: Rating) -> float:
    if rating.kind is RatingKind.SCORE:
        return rating.value - 3
    return category(rating) if rating.kind is not RatingKind.BOTH_BAD else 0.0
