"""Preference pairs: the prompt is shared exactly, the better side is chosen, every refusal has a reason."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes.core import Message, Rating, RatingKind, Relation, Role, ToolCall, new_id
from hermes.data.diff import message_content
from hermes.data.example import Example, UnfitError
from hermes.data.formats.base import ToolCallStyle
from hermes.data.formats.registry import FORMATS
from hermes.data.preference.pairs import (
    Claim,
    PreferenceSource,
    candidate,
    find_claims,
    make_pair,
    rest_of_turn,
)
from tests import records
from tests.data import made


def tries(*answers: str, **known: object) -> list[Example]:
    return [made.example(records.conversation(answer=answer), task_id="t", **known) for answer in answers]


def claims(examples: list[Example], *origins: PreferenceSource, min_margin: float = 0.0) -> list[Claim]:
    return find_claims([candidate(each) for each in examples], origins, min_margin)[0]


def choice(better: Example, other: Example, value: float, at_ms: int = 1) -> Rating:
    return Rating(new_id(), better.id, RatingKind.PAIR, value, "ann", at_ms, other_id=other.id)


def test_rewards_within_a_task_pair_the_best_with_all_and_all_with_the_worst() -> None:
    scored = [
        replace(each, reward=value) for each, value in zip(tries("a", "b", "c"), (0.5, 1.0, 0.0), strict=True)
    ]
    other_task = replace(made.example(records.conversation(), task_id="u"), reward=-5.0)
    found = claims([*scored, other_task], PreferenceSource.REWARD)
    middle, best, worst = (each.id for each in scored)
    assert {(c.better, c.worse, c.margin) for c in found} == {
        (best, middle, 0.5),
        (best, worst, 1.0),
        (middle, worst, 0.5),
    }


def test_equal_rewards_say_nothing_and_are_counted() -> None:
    scored = [replace(each, reward=1.0) for each in tries("a", "b")]
    found, left_out = find_claims([candidate(each) for each in scored], (PreferenceSource.REWARD,))
    assert found == []
    assert left_out == {"reward: no clear difference": 1}


def test_ratings_pair_tries_at_the_same_question_without_a_task_id() -> None:
    good, bad = (
        made.example(records.conversation(answer=text), rating=r) for text, r in (("4", 5.0), ("5", 2.0))
    )
    other = made.example(records.conversation("Something else?"), rating=1.0)
    (claim,) = claims([bad, good, other], PreferenceSource.RATING)
    assert (claim.better, claim.worse, claim.margin) == (good.id, bad.id, 3.0)
    assert claims([bad, good], PreferenceSource.RATING, min_margin=3.5) == []


def rated(turns: list[tuple[str, str]], *verdicts: tuple[int | None, float], **header: object) -> Example:
    """A chat of (question, answer) turns; verdicts are (index of the turn or None for the whole, thumb)."""
    messages = [m for question, answer in turns for m in (Message.user(question), Message.assistant(answer))]
    example = made.example(messages, **header)
    ratings = tuple(
        Rating(
            *(new_id(), example.id, RatingKind.THUMB, value, "ann", number),
            step_index=None if turn is None else 2 * turn + 1,
        )
        for number, (turn, value) in enumerate(verdicts)
    )
    return replace(example, ratings=ratings)


def test_a_rating_belongs_to_its_turn_and_pairs_answer_the_same_context() -> None:
    bad = rated([("hi", "Hello."), ("2+2?", "5"), ("more", "ok")], (1, -1.0))
    good = rated([("hi", "Hello."), ("2+2?", "4")], (1, 1.0))
    elsewhere = rated([("hi", "Hey."), ("2+2?", "4")], (1, 1.0))
    opening = rated([("hi", "What?"), ("x", "y")], (0, -1.0))
    unrated = rated([("hi", "Hello."), ("2+2?", "22")])
    (claim,) = claims([bad, good, elsewhere, opening, unrated], PreferenceSource.RATING)
    assert (claim.better, claim.worse, claim.start) == (good.id, bad.id, 3)
    pair = make_pair(good, bad, claim)
    assert [m.content for m in pair.prompt] == ["hi", "Hello.", "2+2?"]
    assert ([m.content for m in pair.chosen], [m.content for m in pair.rejected]) == (["4"], ["5"])


def test_equal_answers_with_different_verdicts_make_no_pair_of_what_came_later() -> None:
    a = rated([("hi", "Hello."), ("2+2?", "4")], (0, 1.0))
    b = rated([("hi", "Hello."), ("2+2?", "5")], (0, -1.0))
    (claim,) = claims([a, b], PreferenceSource.RATING)
    with pytest.raises(UnfitError, match="equal"):
        make_pair(a, b, claim)


def test_a_verdict_on_the_whole_is_one_on_its_last_turn_and_the_newest_counts() -> None:
    a = rated([("hi", "Hello."), ("2+2?", "4")], (1, -1.0), (None, 1.0))
    b = rated([("hi", "Hello."), ("2+2?", "5")], (None, -1.0), (0, 1.0))
    (claim,) = claims([a, b], PreferenceSource.RATING)
    assert (claim.better, claim.worse, claim.start) == (a.id, b.id, 3)


def test_a_retry_is_judged_by_the_answer_that_was_tried_again() -> None:
    first = rated([("hi", "Hello."), ("2+2?", "5")], (0, 1.0), (1, -1.0))
    turns = [("hi", "Hello."), ("2+2?", "4"), ("a joke?", "no")]
    second = rated(turns, (2, -1.0), parent_id=first.id, relation=Relation.RETRY)
    (claim,) = claims([first, second], PreferenceSource.RETRY)
    assert [m.content for m in make_pair(second, first, claim).chosen] == ["4"]
    again = rated(turns, (1, -1.0), (2, 1.0), parent_id=first.id, relation=Relation.RETRY)
    assert claims([first, again], PreferenceSource.RETRY) == []


def test_the_newest_choice_between_two_counts_whichever_way_it_was_stored() -> None:
    a, b = tries("a", "b")
    a = replace(a, ratings=(choice(a, b, 1.0, at_ms=1),))
    assert [(c.better, c.worse) for c in claims([a, b], PreferenceSource.CHOICE)] == [(a.id, b.id)]
    b = replace(b, ratings=(choice(b, a, 0.5, at_ms=2),))
    (claim,) = claims([a, b], PreferenceSource.CHOICE)
    assert (claim.better, claim.margin) == (b.id, 0.5)
    tie = replace(b, ratings=(choice(b, a, 0.0, at_ms=3),))
    assert claims([a, tie], PreferenceSource.CHOICE) == []


def test_a_choice_outweighs_ratings_when_it_is_asked_first() -> None:
    a, b = (replace(each, rating=r) for each, r in zip(tries("a", "b"), (5.0, 1.0), strict=True))
    a = replace(a, ratings=(choice(b, a, 1.0),))
    (claim,) = claims([a, b], PreferenceSource.CHOICE, PreferenceSource.RATING)
    assert (claim.better, claim.origin) == (b.id, PreferenceSource.CHOICE)


def test_a_retry_is_better_than_the_answer_it_replaces() -> None:
    (first,) = tries("wrong")
    (second,) = tries("right", parent_id=first.id, relation=Relation.RETRY)
    (claim,) = claims([first, second], PreferenceSource.RETRY)
    assert (claim.better, claim.worse, claim.origin) == (second.id, first.id, PreferenceSource.RETRY)
    worse = replace(second, rating=1.0)
    assert claims([replace(first, rating=2.0), worse], PreferenceSource.RETRY) == []
    assert claims([replace(first, rating=5.0), second], PreferenceSource.RETRY) == []
    assert claims([first, worse], PreferenceSource.RETRY) == []
    missing, left_out = find_claims([candidate(second)], (PreferenceSource.RETRY,))
    assert (missing, left_out.total()) == ([], 1)


def test_the_prompt_is_the_shared_prefix_and_the_divergence_is_recorded() -> None:
    a, b = tries("It is 4.", "It is 5.")
    pair = make_pair(a, b, Claim(a.id, b.id, PreferenceSource.CHOICE, 1.0))
    assert pair.prompt == a.messages[:4]
    assert (pair.chosen, pair.rejected) == (a.messages[4:], b.messages[4:])
    assert pair.divergence_step == 4


def test_a_result_that_differs_moves_the_prompt_back_to_the_decision_before_it() -> None:
    a, b = tries("It is 4.", "It is 5.")
    said_else = [*b.messages[:3], replace(b.messages[3], content="5"), b.messages[4]]
    pair = make_pair(a, made.example(said_else), Claim(a.id, b.id, PreferenceSource.CHOICE, 1.0))
    assert pair.divergence_step == 3
    assert pair.prompt == a.messages[:2]
    assert pair.chosen == a.messages[2:]


@pytest.mark.parametrize(
    ("left", "right", "why"),
    [
        (records.conversation(), records.conversation(), "the two are equal"),
        (records.conversation("a"), records.conversation("b"), "no common point"),
        (
            [*records.conversation(), Message.user("x"), Message.assistant("y")],
            [*records.conversation(), Message.user("z"), Message.assistant("y")],
            "differ only in what the user said later",
        ),
    ],
)
def test_what_makes_no_pair_says_why(left: list[Message], right: list[Message], why: str) -> None:
    a, b = made.example(left), made.example(right)
    with pytest.raises(UnfitError, match=why):
        make_pair(a, b, Claim(a.id, b.id, PreferenceSource.CHOICE, 1.0))


def test_different_tools_make_no_pair() -> None:
    a, b = tries("x", "y")
    with pytest.raises(UnfitError, match="different tools"):
        make_pair(a, replace(b, tools=()), Claim(a.id, b.id, PreferenceSource.CHOICE, 1.0))


@st.composite
def two_ways(draw: st.DrawFn) -> tuple[Example, Example]:
    """Two trajectories with a common beginning, in which the ids of calls differ."""
    base = draw(made.messages())
    cut = draw(st.integers(0, len(base)))
    left = base[:cut] + draw(made.messages())
    right = _other_ids(base[:cut]) + draw(made.messages())
    return made.example(left), made.example(right)


def _other_ids(messages: list[Message]) -> list[Message]:
    return [
        replace(
            message,
            tool_calls=tuple(replace(call, id=f"other_{call.id}") for call in message.tool_calls),
            tool_call_id=f"other_{message.tool_call_id}" if message.tool_call_id else None,
        )
        for message in messages
    ]


def check_pair(both: tuple[Example, Example]) -> None:
    a, b = both
    try:
        pair = make_pair(a, b, Claim(a.id, b.id, PreferenceSource.CHOICE, 1.0))
    except UnfitError:
        return
    size = len(pair.prompt)
    assert pair.prompt == a.messages[:size]
    assert [message_content(m) for m in pair.prompt] == [message_content(m) for m in b.messages[:size]]
    assert pair.chosen == rest_of_turn(a.messages[size:])
    assert pair.rejected == rest_of_turn(b.messages[size:])
    assert pair.chosen[0].role is pair.rejected[0].role is Role.ASSISTANT
    at = pair.divergence_step
    assert at >= size
    assert [message_content(m) for m in a.messages[:at]] == [message_content(m) for m in b.messages[:at]]
    assert at in (len(a.messages), len(b.messages)) or message_content(a.messages[at]) != message_content(
        b.messages[at]
    )
    for name in ("trl-preference", "openai-preference"):
        for calls in ToolCallStyle:
            try:
                (row,) = FORMATS[name].write(pair, calls)
            except UnfitError:
                continue
            if name == "trl-preference":
                assert row["divergence_step"] == at
                assert all(m["role"] in ("assistant", "tool") for m in row["chosen"] + row["rejected"])


@given(both=two_ways())
@settings(deadline=None, suppress_health_check=list(HealthCheck))
def test_the_prompt_is_always_an_exact_shared_prefix(both: tuple[Example, Example]) -> None:
    check_pair(both)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@given(both=two_ways())
@settings(max_examples=10_000, deadline=None, suppress_health_check=list(HealthCheck))
def test_the_prompt_is_always_an_exact_shared_prefix_ten_thousand_times(
    both: tuple[Example, Example],
) -> None:
    check_pair(both)


def test_openai_takes_single_answers_only() -> None:
    call = ToolCall("c", "calculator", "{}")
    asked = [Message.user("q")]
    a = made.example([*asked, Message.assistant("yes")])
    b = made.example([*asked, Message.assistant("no")])
    tool_user = made.example([*asked, Message.assistant("", tool_calls=(call,)), Message.tool(call, "1")])
    form = FORMATS["openai-preference"]
    (row,) = form.write(
        make_pair(a, b, Claim(a.id, b.id, PreferenceSource.CHOICE, 1.0)), ToolCallStyle.STRUCTURED
    )
    assert row["preferred_output"] == [{"role": "assistant", "content": "yes"}]
    assert row["input"]["messages"] == [{"role": "user", "content": "q"}]
    with pytest.raises(UnfitError, match="more than one message"):
        list(
            form.write(
                make_pair(a, tool_user, Claim(a.id, b.id, PreferenceSource.CHOICE, 1.0)),
                ToolCallStyle.STRUCTURED,
            )
        )
