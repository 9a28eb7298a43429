"""Recording, undoing and queueing ratings: idempotent, append-only, one rater an item, clear refusals."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from hermes.core import Message, RaterSource, RatingKind, Reward, new_id
from hermes.errors import HermesError, UsageError
from hermes.ratings import QueueRule, QueueSettings, RatingDesk, RatingDraft, RatingMode
from hermes.store import Reader, Writer
from hermes.store.rating.queues import TakeRequest
from tests import records


@pytest.fixture
def db(tmp_path: Path) -> Path:
    return tmp_path / "hermes.db"


@pytest.fixture
def writer(db: Path) -> Iterator[Writer]:
    with Writer(db) as opened:
        yield opened


@pytest.fixture
def desk(db: Path, writer: Writer) -> RatingDesk:
    return RatingDesk(db, writer)


def answers(writer: Writer, *texts: str, task_id: str = "t") -> list[str]:
    """Attempts at one task: user, assistant."""
    return [
        records.record(writer, [Message.user("Say hello."), Message.assistant(text)], task_id=task_id)
        for text in texts
    ]


def counted(db: Path, trajectory_id: str) -> list[tuple[RatingKind, float]]:
    with Reader(db) as reader:
        return [(rating.kind, rating.value) for rating in reader.ratings_about(trajectory_id)]


def test_a_double_click_is_one_event(db: Path, desk: RatingDesk, writer: Writer) -> None:
    (first,) = answers(writer, "Hi.")
    draft = RatingDraft(first, "good", "ann", comment="nice", labels=("polite",), elapsed_ms=1200)
    desk.record(draft)
    desk.record(replace(draft, elapsed_ms=1300))  # resent
    assert counted(db, first) == [(RatingKind.THUMB, 1.0)]
    with pytest.raises(UsageError, match="another content"):
        desk.record(replace(draft, verdict="bad"))
    with Reader(db) as reader:
        (event,) = reader.all_ratings(everything=True)
    assert (event.labels, event.comment, event.source) == (("polite",), "nice", RaterSource.PERSON)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"trajectory_id": "NOWHERE"}, "no trajectory NOWHERE"),
        ({"step_index": 7}, "has no step 7"),
        ({"step_index": 0}, "not an answer of the model"),
        ({"verdict": "6"}, "no verdict on one trajectory"),
        ({"verdict": "a"}, "no verdict on one trajectory"),
        ({"verdict": "a", "other_id": "SELF"}, "compared with itself"),
        ({"verdict": "a", "other_id": "NOWHERE"}, "no trajectory NOWHERE"),
        ({"verdict": "good", "other_id": "OTHER"}, "no verdict on two"),
        ({"verdict": "a", "other_id": "OTHER", "strength": 4}, "strength of 4"),
        ({"verdict": "good", "strength": 2}, "has no strength"),
        ({"verdict": "a", "other_id": "OTHER", "other_step": 0}, "not an answer of the model"),
        ({"verdict": "a", "other_id": "OTHER", "shown_first": "THIRD"}, "not one of the two"),
        ({"verdict": "bad", "per_step": True}, "needs the index of a step"),
        ({"verdict": "first_bad"}, "needs the index of a step"),
        ({"rater": " "}, "the rater of a rating"),
        ({"elapsed_ms": -1.0}, "no time that a rating can take"),
        ({"replaces": "GONE"}, "no rating GONE"),
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_recorded(
    db: Path, desk: RatingDesk, writer: Writer, changes: dict[str, object], reason: str
) -> None:
    first, second = answers(writer, "Hi.", "Go away.")
    names = {"SELF": first, "OTHER": second}
    known = {
        key: names.get(value, value) if isinstance(value, str) else value for key, value in changes.items()
    }
    with pytest.raises(HermesError, match=reason):
        desk.record(replace(RatingDraft(first, "good", "ann"), **known))
    assert counted(db, first) == []


def test_undo_restores_what_was_replaced_and_everything_stays_recorded(
    db: Path, desk: RatingDesk, writer: Writer
) -> None:
    (first,) = answers(writer, "Hi.")
    good = desk.record(RatingDraft(first, "good", "ann"))
    four = desk.record(RatingDraft(first, "4", "ann", replaces=good.id))
    assert counted(db, first) == [(RatingKind.SCORE, 4.0)]
    with pytest.raises(UsageError, match="replaced already"):
        desk.record(RatingDraft(first, "bad", "ann", replaces=good.id))
    with pytest.raises(UsageError, match="cannot take it back"):
        desk.undo(four.id, "bob")
    undo_id = new_id()
    again = desk.undo(four.id, "ann", event_id=undo_id)
    assert counted(db, first) == [(RatingKind.THUMB, 1.0)]
    assert desk.undo(again.id, "ann").kind is RatingKind.SCORE  # undo at any depth
    (last,) = counted(db, first)
    assert last == (RatingKind.SCORE, 4.0)
    lone = desk.record(RatingDraft(first, "bad", "bob"))
    assert desk.undo(lone.id, "bob").kind is RatingKind.WITHDRAW
    assert counted(db, first) == [last]
    with Reader(db) as reader:
        assert len(list(reader.all_ratings(everything=True))) == 6


def test_a_person_outranks_a_later_machine(db: Path, desk: RatingDesk, writer: Writer) -> None:
    (first,) = answers(writer, "Hi.")
    desk.record(RatingDraft(first, "2", "ann"))
    desk.record(RatingDraft(first, "5", "judge:x", source=RaterSource.JUDGE))
    with Reader(db) as reader:
        assert reader.summaries()[0].rating == 2.0


def test_two_people_never_have_the_same_item_and_each_ends(
    db: Path, desk: RatingDesk, writer: Writer
) -> None:
    ids = [answers(writer, f"Hi {i}.", task_id=str(i))[0] for i in range(6)]
    assert desk.create_queue("q", QueueSettings(repeat_share=0.0)) == 6
    assert desk.create_queue("q", QueueSettings(repeat_share=0.0)) == 0
    done: dict[str, list[str]] = {"ann": [], "bob": []}
    while any(items := {rater: desk.next_item("q", rater) for rater in done}.values()):
        held = [item.item for item in items if item is not None]
        assert len(set(held)) == len(held)
        for rater, item in zip(done, items, strict=True):
            if item is None:
                continue
            reloaded = desk.next_item("q", rater)
            assert reloaded is not None and replace(reloaded, until_ms=item.until_ms) == item
            desk.record(RatingDraft(item.trajectory_id, "good", rater, queue="q", item=item.item))
            done[rater].append(item.item)
    assert sorted(done["ann"] + done["bob"]) == sorted(ids)
    progress = desk.progress("q")
    assert (progress.items, progress.finished, progress.leased, progress.raters) == (
        6,
        6,
        0,
        {"ann": 3, "bob": 3},
    )


def test_a_lease_ends_and_a_skip_is_for_one_rater_and_an_undo_reopens(
    db: Path, desk: RatingDesk, writer: Writer
) -> None:
    answers(writer, "Hi.")
    desk.create_queue("q", QueueSettings())
    item = desk.next_item("q", "ann")
    assert item is not None
    assert desk.next_item("q", "bob") is None
    later = TakeRequest("q", "bob", item.until_ms + 1, 1000)
    taken = writer.take_item(later)
    assert taken is not None and taken.row.item == item.item
    desk.release("q", item.item, "bob", skip=True)
    assert desk.next_item("q", "bob") is None
    again = desk.next_item("q", "ann")
    assert again is not None
    event = desk.record(RatingDraft(item.trajectory_id, "good", "ann", queue="q", item=item.item))
    assert desk.next_item("q", "ann") is None
    desk.undo(event.id, "ann")
    assert desk.next_item("q", "ann") is not None


def test_repeats_come_back_to_the_same_rater_only(desk: RatingDesk, writer: Writer) -> None:
    for number in range(40):
        answers(writer, "Hi.", task_id=str(number))
    desk.create_queue("q", QueueSettings(repeat_share=0.4, seed=1))
    seen: list[str] = []
    repeats = 0
    while (item := desk.next_item("q", "ann")) is not None:
        assert item.repeat == (item.item in seen)
        repeats += item.repeat
        if item.repeat:
            assert item.item not in seen[-10:]
        seen.append(item.item)
        desk.record(RatingDraft(item.trajectory_id, "good", "ann", queue="q", item=item.item))
    assert len(set(seen)) == 40 and 5 <= repeats <= 30
    assert max(seen.count(item) for item in seen) == 2


def test_the_rules_order_items_as_they_say(db: Path, desk: RatingDesk, writer: Writer) -> None:
    calm, wide, alone = (
        answers(writer, "a", "b", task_id="calm"),
        answers(writer, "a", "b", "c", task_id="wide"),
        answers(writer, "a", task_id="alone"),
    )
    for ids, values in ((calm, (0.5, 0.6)), (wide, (0.0, 1.0, 0.4)), (alone, (1.0,))):
        for trajectory_id, value in zip(ids, values, strict=True):
            writer.add_reward(Reward(trajectory_id, value, "rule")).result()
    desk.create_queue("spread", QueueSettings(QueueRule.SPREAD, RatingMode.PAIR))
    first = desk.next_item("spread", "ann")
    assert first is not None and {first.trajectory_id, first.other_id} == {wide[0], wide[1]}
    assert first.shown_first in (wide[0], wide[1])
    for ids, values in ((calm, (0.1, 0.2)), (wide, (0.0, 4.0, 9.0))):
        for trajectory_id, value in zip(ids, values, strict=True):
            writer.add_reward(Reward(trajectory_id, value, "reward-model:m", {"std": value})).result()
    desk.create_queue("unsure", QueueSettings(QueueRule.UNCERTAINTY, RatingMode.PAIR))
    unsure = desk.next_item("unsure", "ann")
    assert unsure is not None and {unsure.trajectory_id, unsure.other_id} == set(calm)
    desk.create_queue("unsure-singles", QueueSettings(QueueRule.UNCERTAINTY))
    single = desk.next_item("unsure-singles", "ann")
    assert single is not None and single.trajectory_id == wide[2]
    for trajectory_id, person, judge in ((calm[0], "good", "5"), (wide[0], "bad", "5"), (alone[0], "4", "3")):
        desk.record(RatingDraft(trajectory_id, person, "ann"))
        desk.record(RatingDraft(trajectory_id, judge, "judge:x", source=RaterSource.JUDGE))
    assert desk.create_queue("conflict", QueueSettings(QueueRule.DISAGREEMENT)) == 2
    conflict = desk.next_item("conflict", "bob")
    assert conflict is not None and conflict.trajectory_id == wide[0]
    desk.create_queue("query", QueueSettings(QueueRule.QUERY, where=("reward > 0.9",), rated_too=True))
    assert desk.progress("query").items == 2
    assert desk.create_queue("fresh", QueueSettings(QueueRule.RANDOM)) == 3  # without those a person rated
    with pytest.raises(UsageError, match="other settings"):
        desk.create_queue("fresh", QueueSettings(QueueRule.QUERY))
    with pytest.raises(UsageError, match="no queue 'nope'"):
        desk.next_item("nope", "ann")


def test_a_preference_has_the_same_value_at_every_door() -> None:
    from hermes.web.rating.modes import MODES

    def on_the_page(decision: str) -> float:
        button = MODES["pair"].button(decision)
        return drafted(button.verdict, button.strength)

    def drafted(verdict: str, strength: int | None = None) -> float:
        return RatingDraft("A", verdict, "ann", other_id="B", strength=strength).build().value

    assert on_the_page("left") == drafted("a") == drafted("a", 2)
    assert on_the_page("right") == drafted("b")
    assert on_the_page("much-left") == drafted("a", 3) == 1.0
    assert on_the_page("much-right") == drafted("b", 3) == -1.0
