"""Deleting for good, and the upkeep of the database."""

from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest

from hermes.agent.rating import make_rating
from hermes.core import Message, Reward
from hermes.errors import UsageError
from hermes.store import Reader, Writer
from hermes.store.upkeep import maintain
from hermes.store.upkeep.delete import delete_trajectories
from tests import records

SECRET = "xylophone-confession"


@pytest.fixture
def database(tmp_path: Path) -> Path:
    return tmp_path / "hermes.db"


def write(path: Path, *conversations: list[Message]) -> list[str]:
    with Writer(path) as writer:
        ids = [records.record(writer, messages) for messages in conversations]
        for name in ids:
            writer.add_rating(make_rating(name, "good", comment="kept")).result()
            writer.add_reward(Reward(name, 1.0, "test")).result()
    return ids


def conversation(question: str, answer: str) -> list[Message]:
    return [Message.system("Shared prompt."), Message.user(question), Message.assistant(answer)]


def test_content_that_nothing_else_refers_to_goes_and_shared_content_stays(database: Path) -> None:
    doomed, kept = write(
        database, conversation(SECRET, "Never tell."), conversation("What is 2 + 2?", "Four it is.")
    )
    deletion = delete_trajectories(database, [doomed])
    assert deletion.counts == {"trajectories": 1, "steps": 3, "messages": 2, "ratings": 1, "rewards": 1}
    with Reader(database) as reader:
        assert reader.count() == 1
        assert reader.search("xylophone") == []
        assert [hit.trajectory_id for hit in reader.search("Four")] == [kept]
        assert reader.get(kept).messages[0].content == "Shared prompt."
        assert len(reader.ratings(kept)) == 1
        step = next(step for step in reader.get(kept).steps if step.call)
        assert len(reader.model_input(kept, step)[0]) == 2
    assert SECRET.encode() not in database.read_bytes(), "deleted pages are overwritten"
    assert maintain.check(database).problems == ()


def test_a_deletion_is_all_or_nothing_and_leaves_what_is_being_recorded(database: Path) -> None:
    (finished,) = write(database, conversation("a", "b"))
    with Writer(database) as writer:
        running = records.header()
        writer.begin(running).result()
        with pytest.raises(UsageError, match="is being recorded by process"):
            delete_trajectories(database, [finished, running.id])
        with Reader(database) as reader:
            assert reader.count() == 2


def test_check_names_what_is_damaged(database: Path) -> None:
    write(database, conversation("a", "b"))
    assert maintain.check(database).trajectories == 1
    connection = sqlite3.connect(database)
    connection.execute("DELETE FROM messages WHERE role = 'user'")
    connection.commit()
    connection.close()
    assert any("steps refers to a missing row of messages" in p for p in maintain.check(database).problems)


def test_compact_returns_space_and_a_backup_is_whole_private_and_never_overwrites(
    database: Path, tmp_path: Path
) -> None:
    ids = write(database, *(conversation(f"question {n} " * 2000, "answer") for n in range(20)))
    delete_trajectories(database, ids[1:])
    assert maintain.check(database).free_bytes > 0
    assert maintain.compact(database) > 0
    assert maintain.check(database).free_bytes == 0
    copy = tmp_path / "copy.db"
    maintain.backup(database, copy)
    assert copy.stat().st_mode & 0o777 == 0o600
    with Reader(copy) as reader:
        assert reader.count() == 1
    with pytest.raises(UsageError, match="exists"):
        maintain.backup(database, copy)
