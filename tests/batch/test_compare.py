"""Comparing models: every figure against a value computed by hand."""

from __future__ import annotations

import random
from fractions import Fraction
from typing import Any

import pytest

from hermes.batch.compare.scores import (
    Attempt,
    Contender,
    compare_models,
    disagreements,
    sign_test,
    task_means,
)
from hermes.batch.grading.answers import final_part, matches, normalise
from hermes.core.stats import bootstrap, wilson
from hermes.data.formats.batch import dataset_row
from tests.batch.made import row, usage


def attempt(key: str, reward: float | None = None, sample: int = 0, **changes: Any) -> Attempt:
    return Attempt.from_row(dataset_row(row(key, sample, reward=reward, **changes)))


def contender(model: str, *rewards: float | None, failed: int = 0) -> Contender:
    return Contender(model, [attempt(f"t{n}", reward) for n, reward in enumerate(rewards)], failed)


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(8, 10, 0.4901625, 0.9433178), (5, 10, 0.2365931, 0.7634069), (1, 20, 0.0088814, 0.2361307)],
)
def test_wilsons_are_those_of_the_formula(successes: int, trials: int, low: float, high: float) -> None:
    got = wilson(successes, trials)
    assert (got.low, got.high) == (pytest.approx(low, abs=1e-6), pytest.approx(high, abs=1e-6))


def test_wilsons_touch_the_ends_and_never_leave_them() -> None:
    assert wilson(0, 10).low == 0.0
    assert wilson(0, 10).high == pytest.approx(0.2775328, abs=1e-6)
    assert (wilson(10, 10).low, wilson(10, 10).high) == (
        pytest.approx(0.7224672, abs=1e-6),
        1.0,
    )


def test_a_bootstrap_is_repeatable_and_lies_around_the_mean() -> None:
    values = [0.0, 0.25, 0.5, 0.75, 1.0] * 20
    got = bootstrap(values)
    assert got == bootstrap(values)
    # the standard error of the mean is 0.3536 / 10, so 1.96 of them are 0.0693
    assert got.low == pytest.approx(0.5 - 0.0693, abs=0.01)
    assert got.high == pytest.approx(0.5 + 0.0693, abs=0.01)
    assert (bootstrap([0.3]).low, bootstrap([0.3]).high) == (0.3, 0.3)


@pytest.mark.parametrize(
    ("wins", "losses", "p_value"),
    [(0, 0, 1.0), (5, 5, 1.0), (9, 1, 22 / 1024), (1, 9, 22 / 1024), (3, 0, 0.25), (0, 10, 2 / 1024)],
)
def test_the_sign_test_is_exact_and_two_sided(wins: int, losses: int, p_value: float) -> None:
    assert sign_test(wins, losses) == pytest.approx(p_value)


def test_the_sign_test_bears_thousands_of_tasks() -> None:
    assert 0 <= sign_test(3000, 2000) < 1e-40


def test_samples_of_a_task_are_averaged_before_tasks_are() -> None:
    attempts = [attempt("a", 1.0, 0), attempt("a", 0.0, 1), attempt("b", 1.0), attempt("c", None)]
    assert task_means(attempts) == {"a": 0.5, "b": 1.0}
    (score,) = compare_models([Contender("m", attempts, 0)], ["a", "b", "c"]).scores
    assert (score.score, score.tasks, score.samples, score.ungraded) == (0.75, 2, 4, 1)
    assert score.interval is not None and score.interval.method == "bootstrap"


def test_a_pass_rate_with_one_sample_a_task_has_a_wilson() -> None:
    got = compare_models([contender("m", *[1.0] * 8, 0.0, 0.0)], [])
    assert got.binary
    assert got.scores[0].score == pytest.approx(0.8)
    assert got.scores[0].interval == wilson(8, 10)


def test_one_reward_between_makes_every_score_a_mean() -> None:
    got = compare_models([contender("a", 1.0, 0.0), contender("b", 0.5, 1.0)], [])
    assert not got.binary
    assert [score.interval.method for score in got.scores if score.interval] == ["bootstrap", "bootstrap"]


def test_wins_losses_and_ties_are_counted_on_common_tasks() -> None:
    left = contender("left", 1.0, 1.0, 0.0, 1.0, None)
    right = contender("right", 0.0, 1.0, 1.0, None, 1.0)
    (pair,) = compare_models([left, right], []).pairs
    assert (pair.wins, pair.losses, pair.ties) == (1, 1, 1)
    assert (pair.difference, pair.p_value) == (0.0, 1.0)
    assert pair.interval is not None and pair.interval.low < 0 < pair.interval.high


def test_every_pair_of_models_is_compared_and_every_task_listed() -> None:
    got = compare_models([contender("a", 1.0), contender("b", 0.0), contender("c", None)], ["t0", "t1"])
    assert [(pair.left, pair.right) for pair in got.pairs] == [("a", "b"), ("a", "c"), ("b", "c")]
    assert got.pairs[1].difference is None
    assert got.tasks[0].scores == {"a": 1.0, "b": 0.0, "c": None}
    assert got.tasks[1].scores == {"a": None, "b": None, "c": None}


def test_failures_are_no_zeros() -> None:
    (score,) = compare_models([contender("m", 1.0, 1.0, failed=8)], []).scores
    assert (score.score, score.failed, score.samples) == (1.0, 8, 2)


def test_cost_latency_tokens_and_turns_are_summed_up() -> None:
    attempts = [
        attempt(
            "a",
            turns=1,
            cost_usd=0.25,
            usage=usage(10, 0, 0, 5, 0),
            latency_ms=[100.0, 300.0],
            duration_s=1.0,
        ),
        attempt("b", turns=4, cost_usd=0.5, usage=usage(20, 0, 0, 5, 0), latency_ms=[200.0], duration_s=3.0),
    ]
    got = compare_models([Contender("m", attempts, 0)], []).scores[0]
    assert (got.cost_usd, got.tokens, got.mean_tokens, got.mean_turns) == (0.75, 40, 20.0, 2.5)
    assert (got.latency_p50_ms, got.latency_p90_ms) == (200.0, pytest.approx(280.0))
    assert (got.duration_p50_s, got.outcomes) == (2.0, {"completed": 2})
    unpriced = [*attempts, attempt("c", cost_usd=None)]
    assert compare_models([Contender("m", unpriced, 0)], []).scores[0].cost_usd is None


def test_without_rewards_there_are_no_scores_and_no_pairs() -> None:
    got = compare_models([contender("a", None), contender("b", None)], ["t0"])
    assert (got.graded, got.pairs) == (False, ())
    assert (got.scores[0].score, got.scores[0].interval, got.scores[0].tasks) == (None, None, 1)


def test_a_model_that_finished_nothing_has_a_line_all_the_same() -> None:
    got = compare_models([contender("a", 1.0), Contender("b", [], 5)], ["t0"])
    assert (got.scores[1].score, got.scores[1].failed, got.scores[1].mean_turns) == (None, 5, None)


def test_models_disagree_where_rewards_differ_shown_by_the_first_such_sample() -> None:
    left = [attempt("a", 1.0, 0), attempt("a", 1.0, 1), attempt("b", 1.0), attempt("c", None)]
    right = [attempt("a", 1.0, 0), attempt("a", 0.0, 1), attempt("b", 1.0), attempt("c", 0.0)]
    (got,) = disagreements(left, right, graded=True)
    assert (got.key, got.left.sample, got.right.reward) == ("a", 1, 0.0)


def test_without_rewards_models_disagree_where_they_end_or_answer_differently() -> None:
    def saying(key: str, text: str, stop: str = "completed") -> Attempt:
        outcome = {"stop_reason": stop, "boundary": None, "error_type": None, "detail": None}
        return attempt(key, outcome=outcome, conversations=[{"from": "gpt", "value": text}])

    left = [saying("a", "Yes."), saying("b", "yes"), saying("c", "same")]
    right = [saying("a", "<think>\nhm\n</think>\n*yes*"), saying("b", "no"), saying("c", "same", "max_turns")]
    assert [each.key for each in disagreements(left, right, graded=False)] == ["b", "c"]


def test_the_answer_is_the_last_thing_said_without_thinking_and_calls() -> None:
    turns = [
        {"from": "gpt", "value": "<think>\nno\n</think>\nThe answer is 4."},
        {"from": "gpt", "value": '<think>\nagain\n</think>\n<tool_call>\n{"name": "x"}\n</tool_call>'},
        {"from": "tool", "value": "5"},
    ]
    assert attempt("a", conversations=turns).answer == "The answer is 4."
    assert attempt("a", conversations=turns[2:]).answer == ""


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("42", 42),
        ("42.", "42"),
        (" **42.0** ", "42"),
        ("1,234", "1234"),
        ("-0.50", "-0.5"),
        ("Paris.", "paris"),
        ("Some thought.\nAnswer: Paris", "Paris"),
        ("**Final answer:** Paris!", "Paris"),
        ("so\n#### 72", 72),
        (r"Therefore \boxed{7} and then \boxed{8}", 8),
        ("yes", ["no", "Yes"]),
        ("New   York", "new york"),
        ("ｆｕｌｌ", "full"),
        ("True", True),
        ("0.0", 0),
    ],
)
def test_answers_that_match(answer: str, expected: Any) -> None:
    assert matches(answer, expected)


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("about 42", 42),
        ("421", 42),
        ("12,34", "1234"),
        ("", "x"),
        ("Answer: 5\nAnswer: 6", 5),
        ("1.5", "15"),
        ("no", []),
    ],
)
def test_answers_that_do_not(answer: str, expected: Any) -> None:
    assert not matches(answer, expected)


_NOTATIONS = [
    (r"\boxed{\frac{1}{2}}", "1/2"),
    (r"So it is $\boxed{\dfrac{1}{2}}$.", 0.5),
    (r"\frac12", ".5"),
    (r"-\frac{1}{2}", "-0.5"),
    ("Answer:\n42", 42),
    ("**Final answer:**\n\n42", 42),
    (r"\(42\)", 42),
    (r"\[ 42 \]", 42),
    (".5", "0.5"),
    ("\u22127", -7),
    (r"\text{B}", "B"),
    (r"\boxed{\text{(B)}}", "B"),
    (r"\boxed{1{,}234}", 1234),
    (r"\boxed{\sqrt{2}}", r"\sqrt{2}"),
    ("1e3", 1000),
]


@pytest.mark.parametrize(("answer", "expected"), _NOTATIONS)
def test_the_notation_of_an_answer_does_not_matter(answer: str, expected: Any) -> None:
    assert matches(answer, expected)
    assert not matches(answer, f"1{expected}")


def test_a_number_is_the_same_in_every_notation() -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    for _ in range(500):
        top, tens = draw.randint(-(10**6), 10**6), 10 ** draw.randint(0, 4)
        value, sign, size = Fraction(top, tens), "-" if top < 0 else "", abs(top)
        spelled = [
            f"{sign}{size}/{tens}",
            f"{sign}\\frac{{{size}}}{{{tens}}}",
            f"{top / tens:.4f}",
            f"{top / tens:,.4f}".replace("-", "\u2212"),
            f"{sign}{value.numerator * (-1 if top < 0 else 1)}/{value.denominator}",
        ]
        frames = ["{}", "\\boxed{{{}}}", "Answer:\n{}", "\\({}\\)", "#### {}", "The answer is {}.", "**{}**"]
        left, right = draw.choice(spelled), draw.choice(spelled)
        assert matches(draw.choice(frames).format(left), right), (left, right)
        assert not matches(draw.choice(frames).format(left), f"{sign}{size + 1}/{tens}")


def test_normalising_twice_changes_nothing_and_no_answer_is_slow() -> None:
    for text in ("“Hi”", "007", "+3", "1e5", "½", "-0"):
        assert normalise(normalise(text)) == normalise(text)
    assert final_part("\n" * 200_000 + "#" * 200_000) == "\n" * 200_000 + "#" * 200_000


@pytest.mark.parametrize(
    ("answer", "expected", "matched"),
    [
        ("The answer is 42.", 42, True),
        ("So, the answer is 3.5. Check: 7 / 2.", 3.5, True),
        ("The answer is about 42.", 42, False),
        ("The answer is not known.", 42, False),
        ("First I thought the answer is 41. No: the answer is 42.", 42, True),
    ],
)
def test_a_sentence_that_states_the_answer_counts(answer: str, expected: float, matched: bool) -> None:
    assert matches(answer, expected) is matched


def test_equal_results_give_no_interval_of_width_zero() -> None:
    alike = [attempt("t1", 0.0, sample) for sample in range(2)] + [attempt("t2", 0.0, s) for s in range(2)]
    (score,) = compare_models([Contender("a", alike, 0)], ["t1", "t2"]).scores
    assert score.interval is not None and score.interval.low == 0.0 and score.interval.high > 0.5
    halves = [attempt("t1", 0.5), attempt("t2", 0.5)]
    (score,) = compare_models([Contender("a", halves, 0)], ["t1", "t2"]).scores
    assert score.interval is None
