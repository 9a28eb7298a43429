"""Rewards on text alone: exact match, mention, pattern, word limit, JSON schema; with answers that cheat."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hermes.envs.rewards.result import GraderError, RewardResult
from hermes.envs.rewards.schema import matches_schema
from hermes.envs.rewards.text import exact_match, matches_regex, mentions, word_limit, words


@pytest.mark.parametrize("said", ["Lisbon", " lisbon. ", "LISBON", "Ｌｉｓｂｏｎ", '"Lisbon"'])
def test_exact_match_does_not_mind_case_spacing_and_form(said: str) -> None:
    assert exact_match(said, "Lisbon").value == 1.0


@pytest.mark.parametrize("said", ["", "Lisbon or Porto", "not Lisbon", "Lisbo", "Lisbon Lisbon"])
def test_exact_match_wants_the_answer_and_nothing_else(said: str) -> None:
    assert exact_match(said, "Lisbon").value == 0.0


def test_graders_with_nothing_to_compare_raise_instead_of_saying_zero() -> None:
    with pytest.raises(GraderError, match="empty"):
        exact_match("anything", "  ")
    with pytest.raises(GraderError, match="empty"):
        mentions("anything", "")
    with pytest.raises(GraderError, match="word limit 0"):
        word_limit("anything", 0)


@pytest.mark.parametrize(
    ("said", "value"),
    [
        ("She moved to Lisbon.", 1.0),
        ("She moved to lisbon", 1.0),
        ("Lisbon, not Oslo", 0.0),
        ("Lisbon Oslo Kyoto", 0.0),
        ("Lisbonne", 0.0),
        ("", 0.0),
    ],
)
def test_a_mention_counts_only_if_no_other_candidate_is_named(said: str, value: float) -> None:
    assert mentions(said, "Lisbon", ["Oslo", "Kyoto"]).value == value


def test_a_distractor_that_is_part_of_the_answer_does_not_spoil_it() -> None:
    assert mentions("New York", "New York", ["York"]).value == 1.0


def test_a_pattern_must_fit_the_whole_answer() -> None:
    assert matches_regex(" AB-12 ", r"[A-Z]{2}-\d+").value == 1.0
    assert matches_regex("it is AB-12", r"[A-Z]{2}-\d+").value == 0.0


def test_a_pattern_that_would_backtrack_for_ever_ends_at_once() -> None:
    assert matches_regex("a" * 5000 + "!", r"(a+)+").value == 0.0


def test_a_broken_pattern_is_the_graders_failure() -> None:
    with pytest.raises(GraderError, match="not a regular expression"):
        matches_regex("anything", "(")


@pytest.mark.parametrize(("count", "value"), [(1, 1.0), (10, 1.0), (20, 0.5), (30, 0.0), (300, 0.0)])
def test_the_word_limit_falls_off_in_a_straight_line(count: int, value: float) -> None:
    assert word_limit("word " * count, 10).value == value


@pytest.mark.parametrize("said", ["", "   ", "\u200b\u200b", "...", "\n"])
def test_an_empty_answer_keeps_no_word_limit(said: str) -> None:
    assert word_limit(said, 10).value == 0.0


@pytest.mark.parametrize("glue", ["\u200b", "_", "-", "/", "\u2060", "\u00ad", ".", "\u2028"])
def test_words_cannot_be_hidden_by_what_stands_between_them(glue: str) -> None:
    assert len(words(glue.join(["word"] * 40))) == 40


def test_letters_without_any_space_count_as_several_words() -> None:
    assert len(words("x" * 240)) == 10


@given(st.text(max_size=300))
def test_no_text_is_worth_less_than_0_or_more_than_1(said: str) -> None:
    assert 0.0 <= word_limit(said, 5).value <= 1.0
    assert exact_match(said, "x").value in (0.0, 1.0)


SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer"}},
    "required": ["n"],
    "additionalProperties": False,
}


@pytest.mark.parametrize("said", ['{"n": 3}', ' {"n": 3}\n', '```json\n{"n": 3}\n```', '```\n{"n": 3}```'])
def test_json_of_the_right_schema_alone_or_fenced_is_right(said: str) -> None:
    assert matches_schema(said, SCHEMA).value == 1.0


@pytest.mark.parametrize(
    ("said", "parses"),
    [
        ("", 0.0),
        ('{"n": "3"}', 1.0),
        ('{"n": true}', 1.0),
        ('{"n": 3, "m": 1}', 1.0),
        ('{"n": NaN}', 0.0),
        ('{"n": 1, "n": 2}', 0.0),
        ('Here it is: {"n": 3}', 0.0),
        ('{"n": 3} {"n": 4}', 0.0),
        ("[" * 100_000, 0.0),
    ],
)
def test_json_that_is_broken_ambiguous_or_of_another_schema_is_wrong(said: str, parses: float) -> None:
    result = matches_schema(said, SCHEMA)
    assert result.value == 0.0
    assert result.parts["parses"] == parses


def test_a_schema_that_is_none_or_refers_elsewhere_is_the_graders_failure() -> None:
    with pytest.raises(GraderError, match="not a JSON schema"):
        matches_schema("{}", {"type": 3})
    with pytest.raises(GraderError, match=r"schema\.json"):
        matches_schema("{}", {"$ref": "http://127.0.0.1:1/schema.json"})


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "1", None])
def test_a_reward_that_is_no_finite_number_cannot_be_made(value: float) -> None:
    with pytest.raises(GraderError, match="not a finite number"):
        RewardResult(value)
    with pytest.raises(GraderError, match="not a finite number"):
        RewardResult(0.5, {"part": value})
