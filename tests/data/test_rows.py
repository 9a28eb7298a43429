"""Rows for training hold exactly the rated messages, after exactly what the model saw."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hermes.core import (
    Header,
    RaterSource,
    Rating,
    RatingKind,
    Relation,
    Reward,
    Source,
    new_id,
)
from hermes.data.diff import message_content
from hermes.data.export.run import ExportPlan, preview
from hermes.data.export.select import TrajectorySelection
from hermes.data.formats.registry import FORMATS
from hermes.data.preference.pairs import PreferenceSource
from hermes.data.preference.rows import RatedSpan, read_rows
from hermes.store import Reader, Writer
from tests import records
from tests.data.rated_stores import PENDING, Recorded, stores, write


def expected_spans(chosen: list[Recorded]) -> dict[tuple[str, int, int], list[float]]:
    """(trajectory, first step, last step) → the score of each rater, from the events it was written with."""
    verdicts: dict[tuple[str, int, int], list[tuple[Rating, float]]] = {}
    by_id = {recorded.id: recorded for recorded in chosen}

    def add(recorded: Recorded, rating: Rating, first: int, last: int, score: float) -> None:
        verdicts.setdefault((recorded.id, first, last), []).append((rating, score))

    def add_turn(recorded: Recorded, rating: Rating, step: int | None, score: float) -> None:
        turn = recorded.turn(recorded.answers[-1] if step is None else step)
        add(recorded, rating, turn[0].index, turn[-1].index, score)

    for rating in sorted((r for c in chosen for r in c.ratings), key=lambda r: r.created_at_ms):
        recorded = by_id[rating.trajectory_id]
        if rating.kind in (RatingKind.THUMB, RatingKind.SCORE):
            score = rating.value if rating.kind is RatingKind.SCORE else 3 + 2 * rating.value
            add_turn(recorded, rating, rating.step_index, score)
        elif rating.kind is RatingKind.STEP:
            add(recorded, rating, rating.step_index or 0, rating.step_index or 0, 3 + 2 * rating.value)
        elif rating.kind is RatingKind.FIRST_BAD:
            for index in recorded.answers:
                if index <= (rating.step_index or 0):
                    add(recorded, rating, index, index, 1.0 if index == rating.step_index else 5.0)
        elif rating.kind is RatingKind.BOTH_BAD:
            add_turn(recorded, rating, rating.step_index, 1.0)
            add_turn(by_id[rating.other_id or ""], rating, rating.other_step, 1.0)
    scores = {}
    for key, events in verdicts.items():
        people = [event for event in events if event[0].source is RaterSource.PERSON] or events
        newest = {(event[0].source, event[0].rater): event[1] for event in people}
        scores[key] = list(newest.values())
    return scores


def check_span(span: RatedSpan, recorded: Recorded, scores: dict[tuple[str, int, int], list[float]]) -> None:
    first = next(
        i
        for i in recorded.answers
        if recorded.contexts[i] == span.prompt and recorded.steps[i].message == span.completion[0]
    )
    last = first + len(span.completion) - 1
    assert tuple(step.message for step in recorded.steps[first : last + 1]) == span.completion
    by_rater = scores[recorded.id, first, last]
    assert span.score == sum(by_rater) / len(by_rater)
    assert span.desirable == is_desirable(by_rater)


def is_desirable(by_rater: list[float]) -> bool | None:
    """By how many raters say so, not by the mean: 4 and 1 are one against one."""
    good, bad = (sum(score > 3 for score in by_rater), sum(score < 3 for score in by_rater))
    return None if good == bad else good > bad


@given(data=st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_row_holds_exactly_the_rated_messages_after_what_the_model_saw(data: st.DataObject) -> None:
    check_store(data)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@given(data=st.data())
@settings(max_examples=2000, deadline=None, suppress_health_check=list(HealthCheck))
def test_every_row_holds_exactly_the_rated_messages_two_thousand_times(data: st.DataObject) -> None:
    check_store(data)


def check_store(data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        db = Path(folder) / "hermes.db"
        with Writer(db) as writer:
            chosen = data.draw(stores(writer))
            while PENDING:
                PENDING.pop().result()
        by_id = {recorded.id: recorded for recorded in chosen}
        scores = expected_spans(chosen)
        with Reader(db) as reader:
            mixed = TrajectorySelection(only_completed=False, machine_ratings=True)
            rows = read_rows(reader, mixed)
            plan = ExportPlan(FORMATS["trl-unpaired"], Path("x.jsonl"), replace(mixed, only_completed=True))
            unpaired, _ = preview(reader, plan, 1000)
        assert len(rows.spans) == len(scores)
        for span in rows.spans:
            check_span(span, by_id[span.trajectory_id], scores)
        assert len(unpaired) == sum(is_desirable(by_rater) is not None for by_rater in scores.values())
        events = {rating.id: rating for recorded in chosen for rating in recorded.ratings}
        for pair in rows.pairs:
            sides = ((pair.chosen_id, pair.chosen), (pair.rejected_id, pair.rejected))
            contexts = []
            for trajectory_id, completion in sides:
                recorded = by_id[trajectory_id]
                starts = [i for i, step in enumerate(recorded.steps) if step.message == completion[0]]
                (context,) = {
                    context
                    for context in (recorded.before(i) for i in starts)
                    if [message_content(m) for m in context] == [message_content(m) for m in pair.prompt]
                }
                contexts.append(context)
                turn = recorded.turn(starts[0]) if len(starts) == 1 else None
                if turn is not None:
                    rest = tuple(step.message for step in turn if step.index >= starts[0])
                    assert rest == completion
            assert contexts[0] == pair.prompt
            assert pair.chosen != pair.rejected
            if pair.origin is PreferenceSource.CHOICE:
                assert set(pair.ratings) <= events.keys()
                assert all(
                    {events[i].trajectory_id, events[i].other_id} == {pair.chosen_id, pair.rejected_id}
                    for i in pair.ratings
                )
            elif pair.origin is PreferenceSource.RATING:
                assert pair.ratings and set(pair.ratings) <= events.keys()


def test_a_choice_names_its_turn(tmp_path: Path) -> None:
    """Two chats differ in both turns; the choice was between the second answers, which share no context."""
    with Writer(tmp_path / "db") as writer:
        a = write(writer, [("q", ["x"]), ("r", ["good"])])
        b = write(writer, [("q", ["x"]), ("r", ["bad"]), ("s", ["later"])])
        c = write(writer, [("q", ["y"]), ("r", ["bad"])])
        for other, steps in ((b, (4, 4)), (c, (4, 4))):
            writer.add_rating(
                Rating(
                    *(new_id(), a.id, RatingKind.PAIR, 1.0, "ann", 1),
                    other_id=other.id,
                    step_index=steps[0],
                    other_step=steps[1],
                )
            ).result()
    with Reader(tmp_path / "db") as reader:
        rows = read_rows(reader)
    (pair,) = rows.pairs
    assert (pair.chosen[0].content, pair.rejected[0].content) == ("good", "bad")
    assert pair.rejected_id == b.id
    assert rows.left_out["the two do not answer the same context"] == 1


def test_contradictions_ties_and_both_bad_make_no_pair_and_are_counted(tmp_path: Path) -> None:
    with Writer(tmp_path / "db") as writer:
        made = [write(writer, [("q", [text])]) for text in ("a", "b", "c", "d", "e", "f")]
        pairs = zip(made[::2], made[1::2], strict=True)
        verdicts = ([("ann", 1.0), ("bob", -1.0)], [("ann", 0.0)], [("ann", None)])
        for (left, right), events in zip(pairs, verdicts, strict=True):
            for rater, value in events:
                kind = RatingKind.BOTH_BAD if value is None else RatingKind.PAIR
                rating = Rating(new_id(), left.id, kind, -1.0 if value is None else value, rater, 1)
                writer.add_rating(replace(rating, other_id=right.id)).result()
    with Reader(tmp_path / "db") as reader:
        rows = read_rows(reader)
    assert rows.pairs == ()
    assert rows.left_out == {
        "choice: the raters contradict each other": 1,
        "choice: no clear difference": 1,
        "choice: both are bad": 1,
    }
    assert [(span.score, span.desirable) for span in rows.spans] == [(1.0, False), (1.0, False)]


def test_a_reward_pairs_attempts_and_a_rating_of_one_is_none(tmp_path: Path) -> None:
    with Writer(tmp_path / "db") as writer:
        good, bad = (write(writer, [("q", [text])]) for text in ("a", "b"))
        for recorded, value in ((good, 1.0), (bad, 0.0)):
            writer.add_reward(Reward(recorded.id, value, "rule")).result()
    with Reader(tmp_path / "db") as reader:
        (pair,) = read_rows(reader).pairs
        assert (pair.chosen_id, pair.origin, pair.ratings) == (good.id, PreferenceSource.REWARD, ())
        assert read_rows(reader, origins=(PreferenceSource.RATING,)).pairs == ()


def test_a_rating_of_a_step_finds_its_answer_in_a_compressed_version(tmp_path: Path) -> None:
    """The version lacks an old exchange, so its steps have other indices than the original's."""
    with Writer(tmp_path / "db") as writer:
        original = write(writer, [("q", ["look", "x"]), ("r", ["rated"]), ("s", ["later"])])
        lost = [step for step in original.steps if step.index not in (2, 3)]  # a call and its result
        version = Header(
            *(new_id(), Source.CHAT, "test/model", 1), parent_id=original.id, relation=Relation.COMPRESSED
        )
        writer.begin(version)
        for index, step in enumerate(lost):
            writer.append(version.id, replace(step, index=index))
        writer.finish(version.id, records.COMPLETED).result()
        for step_index, value in ((6, 1.0), (2, -1.0)):
            rating = Rating(new_id(), original.id, RatingKind.STEP, value, "ann", 1, step_index=step_index)
            writer.add_rating(rating).result()
    with Reader(tmp_path / "db") as reader:
        plan = ExportPlan(FORMATS["trl-unpaired"], Path("x.jsonl"))
        plan = replace(plan, selection=replace(plan.selection, compressed=True))
        (row,), _ = preview(reader, plan, 10)
    assert [message["content"] for message in row["completion"]] == ["rated"]
    assert [message["content"] for message in row["prompt"]] == ["Be kind.", "q", "x", "r"]
