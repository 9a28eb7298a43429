"""What is written comes back, exactly, and cannot be changed afterwards."""

from __future__ import annotations

import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given, settings

from hermes.core import (
    Message,
    Outcome,
    Rating,
    RatingKind,
    Reward,
    Step,
    StepKind,
    StopReason,
    TokenTrace,
    new_id,
)
from hermes.errors import StoreError
from hermes.store import Reader, Writer
from hermes.store.sqlite import connect_reader
from tests import records


@given(messages=records.conversations(), call=records.calls)
@settings(deadline=None)
def test_every_message_call_and_token_comes_back(messages: list[Message], call: object) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "hermes.db"
        with Writer(path) as writer:
            trajectory_id = records.record(writer, messages, call=call, metadata={"k": [1, "ü"]})  # type: ignore[arg-type]
        with Reader(path) as reader:
            found = reader.get(trajectory_id)
            assert found.header.metadata == {"k": [1, "ü"]}
            assert list(found.messages) == messages
            assert found.outcome == records.COMPLETED
            for step in found.steps:
                if step.kind is StepKind.MODEL:
                    assert step.call == call
                    seen, tools = reader.model_input(trajectory_id, step)
                    assert list(seen) == messages[: step.index]
                    assert tuple(tools) == records.TOOLS


def test_a_message_with_a_lone_surrogate_and_nul_is_kept(writer: Writer, db: Path) -> None:
    strange = "half \ud83d, nul \x00, end"
    trajectory_id = records.record(writer, [Message.user(strange), Message.assistant("ok")])
    with Reader(db) as reader:
        assert reader.get(trajectory_id).messages[0].content == strange


def test_shared_prefixes_are_stored_once(writer: Writer, db: Path) -> None:
    prefix = [Message.system("s" * 5000), Message.user("Try this.")]
    for sample in range(10):
        records.record(
            writer,
            [*prefix, Message.assistant(f"answer {sample}"), Message.user("more"), Message.assistant("x")],
        )
    connection = connect_reader(db)
    assert connection.execute("SELECT count(*) FROM messages").fetchone()[0] == 2 + 10 + 2
    # system, user; per sample: the answer, then 'more' after it
    assert connection.execute("SELECT count(*) FROM contexts").fetchone()[0] == 2 + 10 * 2


def test_a_finished_trajectory_cannot_be_changed(writer: Writer, db: Path) -> None:
    trajectory_id = records.record(writer, records.conversation())
    late = Step(99, StepKind.INPUT, Message.user("late"), 1)
    with pytest.raises(StoreError, match="is finished"):
        writer.append(trajectory_id, late).result()
    with pytest.raises(StoreError, match="is finished"):
        writer.finish(trajectory_id, Outcome(StopReason.COMPLETED)).result()
    with Reader(db) as reader:
        assert len(reader.get(trajectory_id).steps) == 5


def test_an_operation_that_fails_does_not_harm_its_neighbours_in_the_same_commit(
    writer: Writer, db: Path
) -> None:
    good = [records.header() for _ in range(20)]
    futures = []
    for head in good:
        futures.append(writer.begin(head))
        futures.append(writer.append("no-such-trajectory", Step(0, StepKind.INPUT, Message.user("x"), 1)))
        futures.append(writer.append(head.id, Step(0, StepKind.INPUT, Message.user(head.id), 1)))
    failed = [future for future in futures if future.exception()]
    assert len(failed) == len(good)
    with Reader(db) as reader:
        assert all(reader.get(head.id).messages[0].content == head.id for head in good)


def test_a_step_index_cannot_be_used_twice(writer: Writer, db: Path) -> None:
    trajectory_id = records.record(writer, [Message.user("a")], outcome=None)
    with pytest.raises(Exception, match="UNIQUE"):
        writer.append(trajectory_id, Step(0, StepKind.INPUT, Message.user("b"), 1)).result()
    with Reader(db) as reader:
        assert [message.content for message in reader.get(trajectory_id).messages] == ["a"]


def test_files_are_private(writer: Writer, db: Path) -> None:
    records.record(writer, records.conversation())
    for file in db.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600, file
    assert stat.S_IMODE(db.parent.stat().st_mode) == 0o700


def test_verdicts_are_appended_and_a_replacement_withdraws_the_old_one(writer: Writer, db: Path) -> None:
    trajectory_id = records.record(writer, records.conversation())
    first = Rating(new_id(), trajectory_id, RatingKind.THUMB, -1.0, "ann", 1)
    second = Rating(
        new_id(), trajectory_id, RatingKind.SCORE, 4.0, "ann", 2, comment="better", replaces=first.id
    )
    writer.add_rating(first).result()
    writer.add_rating(second).result()
    writer.add_reward(Reward(trajectory_id, 0.25, "tests", {"passed": 1}, 3)).result()
    with Reader(db) as reader:
        assert reader.ratings(trajectory_id) == [second]
        assert reader.rewards(trajectory_id) == [Reward(trajectory_id, 0.25, "tests", {"passed": 1}, 3)]
        summary = reader.summaries()[0]
        assert (summary.rating, summary.reward) == (4.0, 0.25)


def test_a_rating_of_an_unknown_trajectory_is_refused(writer: Writer) -> None:
    with pytest.raises(StoreError, match="no trajectory"):
        writer.add_rating(Rating(new_id(), "nowhere", RatingKind.THUMB, 1.0, "ann", 1)).result()


def test_a_closed_writer_says_so(db: Path) -> None:
    writer = Writer(db)
    writer.close()
    writer.close()
    with pytest.raises(StoreError, match="is closed"):
        writer.begin(records.header())


def test_closing_commits_what_is_queued(db: Path) -> None:
    heads = [records.header() for _ in range(50)]
    with Writer(db) as writer:
        for head in heads:
            writer.begin(head)
    with Reader(db) as reader:
        assert reader.count() == 50


def test_token_traces_must_match_their_logprobs() -> None:
    with pytest.raises(ValueError, match="2 sampled ids but 1 logprobs"):
        TokenTrace((1,), (2, 3), (-0.1,))
