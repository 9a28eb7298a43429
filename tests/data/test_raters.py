"""Several raters: a pair is what most of those who compared the two answers said, never what nobody did."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import count

import pytest

from hermes.core import Rating, RatingKind, new_id
from hermes.data.example import Example
from hermes.data.preference.pairs import Claim, PreferenceSource, candidate, find_claims
from hermes.data.preference.verdicts import rated_spans
from tests import records
from tests.data import made

Scores = dict[str, float]
"""Rater → score."""
_times = count()


def answers(*scores: Scores) -> list[Example]:
    """Answers to one question, each with its raters' scores."""
    rated = []
    for number, by_rater in enumerate(scores):
        example = made.example(records.conversation(answer=f"answer {number}"))
        ratings = [
            Rating(new_id(), example.id, RatingKind.SCORE, score, rater, next(_times))
            for rater, score in by_rater.items()
        ]
        rated.append(replace(example, ratings=tuple(ratings)))
    return rated


def choices(*values: float) -> list[Example]:
    """Two answers, and how much each of several raters prefers the first."""
    first, second = answers({}, {})
    ratings = tuple(
        Rating(new_id(), first.id, RatingKind.PAIR, value, f"rater {n}", next(_times), other_id=second.id)
        for n, value in enumerate(values)
    )
    return [replace(first, ratings=ratings), replace(second, ratings=ratings)]


def decide(examples: list[Example], *origins: PreferenceSource) -> tuple[list[Claim], dict[str, int]]:
    claims, left_out = find_claims([candidate(example) for example in examples], origins)
    return claims, dict(left_out)


@pytest.mark.parametrize("strengths", [(1.0, -1.0), (1.0, -1 / 3), (0.5, -1.0), (1.0, -1.0, 0.0)])
def test_one_against_one_gives_no_pair_however_strong(strengths: tuple[float, ...]) -> None:
    claims, left_out = decide(choices(*strengths), PreferenceSource.CHOICE)
    assert (claims, left_out) == ([], {"choice: the raters contradict each other": 1})


@pytest.mark.parametrize("strengths", [(1.0, 1.0, -1.0), (0.5, 1.0, -0.5, 0.0), (1.0, 0.0)])
def test_a_majority_decides_and_a_tie_of_one_rater_weakens_it(strengths: tuple[float, ...]) -> None:
    examples = choices(*strengths)
    (claim,), _ = decide(examples, PreferenceSource.CHOICE)
    assert claim.better == examples[0].id
    assert claim.margin == pytest.approx(sum(strengths) / len(strengths))


def test_a_majority_that_a_much_stronger_minority_outweighs_gives_no_pair() -> None:
    claims, left_out = decide(choices(0.3, 0.3, -1.0), PreferenceSource.CHOICE)
    assert (claims, left_out) == ([], {"choice: the raters contradict each other": 1})


def test_the_person_who_rated_both_decides_against_the_means() -> None:
    # ann prefers the first; bob and cy, who rated one each, would turn the means round
    examples = answers({"ann": 3, "bob": 1}, {"ann": 2, "cy": 5})
    (claim,), _ = decide(examples, PreferenceSource.RATING)
    assert (claim.better, claim.worse, claim.margin) == (examples[0].id, examples[1].id, 1.0)


def test_different_raters_make_a_pair_only_of_good_against_bad() -> None:
    for first, second, margin in (({"ann": 5}, {"bob": 2}, 3.0), ({"ann": 4, "cy": 5}, {"bob": 1}, 3.0)):
        (claim,), _ = decide(answers(first, second), PreferenceSource.RATING)
        assert claim.margin == margin
    for first, second in (
        ({"ann": 5}, {"bob": 4}),
        ({"ann": 5, "cy": 2}, {"bob": 1}),
        ({"ann": 3}, {"bob": 1}),
    ):
        claims, left_out = decide(answers(first, second), PreferenceSource.RATING)
        assert claims == []
        assert left_out == {"rating: no rater rated both, and it is not good against bad": 1}


def test_groups_that_no_rater_connects_give_pairs_of_their_own() -> None:
    examples = answers({"ann": 5}, {"ann": 4}, {"bob": 5}, {"bob": 4})
    claims, _ = decide(examples, PreferenceSource.RATING)
    ids = [example.id for example in examples]
    assert {(claim.better, claim.worse) for claim in claims} == {(ids[0], ids[1]), (ids[2], ids[3])}


def test_an_answer_is_good_if_most_raters_find_it_so() -> None:
    for scores, desirable in (
        ({"ann": 5.0, "bob": 2.0}, None),
        ({"ann": 5.0, "bob": 2.0, "cy": 4.0}, True),
        ({"ann": 5.0, "bob": 2.0, "cy": 2.0}, False),
        ({"ann": 3.0}, None),
    ):
        (span,) = rated_spans(answers(scores)[0])
        assert span.desirable is desirable


def test_no_pair_says_what_nobody_said() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    pairs = 0
    for _ in range(500):
        drawn = [
            {rater: float(draw.randint(1, 5)) for rater in draw.sample("abcd", k=draw.randint(1, 4))}
            for _ in range(draw.randint(2, 5))
        ]
        examples = answers(*drawn)
        scores = {example.id: by_rater for example, by_rater in zip(examples, drawn, strict=True)}
        claims, _ = decide(examples, PreferenceSource.RATING)
        pairs += len(claims)
        assert len(claims) <= 2 * len(examples)
        for claim in claims:
            better, worse = scores[claim.better], scores[claim.worse]
            both = better.keys() & worse.keys()
            if both:
                prefer = sum(better[rater] > worse[rater] for rater in both)
                against = sum(better[rater] < worse[rater] for rater in both)
                assert prefer > against
            else:
                assert min(better.values()) > 3 > max(worse.values())
    assert pairs > 100
