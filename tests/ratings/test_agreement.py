"""Agreement figures come out as computed by hand, and as the noise of simulated raters implies."""

from __future__ import annotations

import random

import pytest

from hermes.core import RaterSource, Rating, RatingKind, new_id
from hermes.ratings.agreement import Scale, Share, cohen_kappa, krippendorff_alpha, report

# Krippendorff's own example: four observers, twelve units, 0 = not rated.
OBSERVERS = ("123321412000", "123322412503", "033323422510", "123324412510")
UNITS = [[float(row[unit]) for row in OBSERVERS if row[unit] != "0"] for unit in range(12)]


@pytest.mark.parametrize(
    ("scale", "alpha"), [(Scale.NOMINAL, 0.743), (Scale.ORDINAL, 0.815), (Scale.INTERVAL, 0.849)]
)
def test_alpha_of_the_textbook_example(scale: Scale, alpha: float) -> None:
    assert krippendorff_alpha(UNITS, scale) == pytest.approx(alpha, abs=5e-4)


def test_alpha_and_kappa_of_a_table_by_hand() -> None:
    # Twenty items: both good 9, both bad 6, differing 2 and 3. Chance: 11/20·12/20 + 9/20·8/20.
    pairs = [(1.0, 1.0)] * 9 + [(-1.0, -1.0)] * 6 + [(1.0, -1.0)] * 2 + [(-1.0, 1.0)] * 3
    chance = (11 * 12 + 9 * 8) / 400
    assert cohen_kappa(pairs) == pytest.approx((0.75 - chance) / (1 - chance))
    # Alpha: 23 good and 17 bad values; observed disagreement 10/40, expected 2·23·17/(40·39).
    assert krippendorff_alpha(pairs) == pytest.approx(1 - (10 / 40) / (2 * 23 * 17 / (40 * 39)))


def test_what_says_nothing_has_no_figure() -> None:
    assert krippendorff_alpha([[1.0], [2.0]]) is None
    assert krippendorff_alpha([[2.0, 2.0], [2.0, 2.0]]) == 1.0
    assert cohen_kappa([]) is None
    assert Share(0, 0).value is None
    low, high = Share(8, 10).interval
    assert (low, high) == pytest.approx((0.4902, 0.9433), abs=1e-4)


def rating(item: int, rater: str, kind: RatingKind, value: float, **known: object) -> Rating:
    return Rating(new_id(), f"T{item:04}", kind, value, rater, item, **known)  # type: ignore[arg-type]


def test_simulated_raters_with_known_noise() -> None:
    """Two raters who see the truth through a flip rate q agree with kappa (1 − 2q)² on balanced items."""
    draw, flip, events = random.Random(7), 0.15, []
    for item in range(4000):
        truth = 1.0 if item % 2 else -1.0
        for rater in ("ann", "bob"):
            value = -truth if draw.random() < flip else truth
            events.append(rating(item, rater, RatingKind.THUMB, value, elapsed_ms=2000.0 + item))
    figures = report(events)
    (scale,) = figures.scales
    expected = (1 - 2 * flip) ** 2
    assert scale.items == 4000
    assert scale.kappa["ann", "bob"] == pytest.approx(expected, abs=0.04)
    assert scale.alpha == pytest.approx(expected, abs=0.04)
    assert figures.raters[0].seconds == pytest.approx((2000 + 3999 / 2) / 1000)


def test_position_bias_and_repeats_of_a_simulated_rater() -> None:
    draw, events = random.Random(3), []
    for item in range(2000):
        left_first = draw.random() < 0.5
        picks_first = draw.random() < 0.7  # whatever is shown first wins seven times in ten
        value = 1.0 if picks_first == left_first else -1.0
        shown = f"T{item:04}" if left_first else f"U{item:04}"
        events.append(rating(item, "ann", RatingKind.PAIR, value, other_id=f"U{item:04}", shown_first=shown))
    for item in range(100):  # every hundredth item again; one in four changes its mind
        before = events[item]
        value = -before.value if item % 4 == 0 else before.value
        events.append(rating(item, "ann", RatingKind.PAIR, value, other_id=before.other_id))
    (figures,) = report(events).raters
    low, high = figures.first_shown.interval
    assert low < 0.7 < high and low > 0.5
    assert (figures.repeats.count, figures.repeats.total) == (75, 100)


def test_a_machine_is_reported_with_its_agreement_with_people() -> None:
    events = [rating(item, "ann", RatingKind.THUMB, 1.0 if item < 5 else -1.0) for item in range(10)]
    for item in range(8):
        score = 5.0 if item < 4 or item == 7 else 1.0
        events.append(rating(item, "rule", RatingKind.SCORE, score, source=RaterSource.REWARD))
    events.append(rating(50, "rule", RatingKind.SCORE, 5.0, source=RaterSource.REWARD))  # no person rated it
    figures = report(events)
    assert figures.machines == {"rule": Share(6, 8)}
    assert all(scale.items == 0 for scale in figures.scales)
