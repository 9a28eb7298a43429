"""Deleting for good, and the upkeep of the database."""

from __future__ import annotations

import random
import sqlite3
from pathlib import Path

import pytest

from hermes.core import Message, Reward
from hermes.core.rating import RatingDraft
from hermes.errors import UsageError
from hermes.safety.redact import Redactor
from hermes.store import Reader, Writer, sqlite
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
            writer.add_rating(RatingDraft(name, "good", "ann", comment="kept").build()).result()
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
    data = database.read_bytes()
    assert SECRET.encode() not in data, "deleted pages are overwritten"
    assert b"ylophone" not in data and b"onfession" not in data, "the index has none of its words"
    assert maintain.check(database).problems == ()


def content_of(path: Path) -> dict[str, list[object]]:
    """All content of a store without its numbers."""
    with Reader(path) as reader:
        paths = sorted(
            [message.to_json() for message in reader.model_input(trajectory.header.id, step)[0]].__repr__()
            for trajectory in reader.trajectories()
            for step in trajectory.steps
            if step.call
        )
    connection = sqlite.connect_reader(path)
    rows = {
        "messages": sorted(row[0] for row in connection.execute("SELECT body FROM messages")),
        "tools": sorted(row[0] for row in connection.execute("SELECT body FROM tool_schemas")),
        "contexts": connection.execute("SELECT count(*) FROM contexts").fetchall(),
    }
    connection.close()
    return {**rows, "paths": paths}


@pytest.mark.parametrize("seed", range(12))
def test_after_a_deletion_the_store_has_what_it_would_have_without_the_deleted(
    tmp_path: Path, seed: int
) -> None:
    print(f"seed {seed}")
    draw = random.Random(seed)
    words = [f"word{number}" for number in range(30)] + ["half \ud83d of a pair", "Grüße", "苹果"]

    def some_words() -> str:
        return " ".join(draw.choices(words, k=3))

    shared = [Message.system(some_words()) for _ in range(2)]
    conversations = []
    for _ in range(25):
        messages = [draw.choice(shared), Message.user(draw.choice(words))]
        for _ in range(draw.randint(1, 3)):
            messages += [Message.assistant(some_words()), Message.user(draw.choice(words))]
        conversations.append((messages[:-1], [{"name": draw.choice("abc"), "parameters": {}}]))
    secrets = Redactor({"K": "word7 word8"}).text if seed % 3 == 0 else str
    doomed = {number for number in range(25) if draw.random() < 0.4}
    whole, kept = tmp_path / "whole.db", tmp_path / "kept.db"
    with Writer(whole, secrets) as all_writer, Writer(kept, secrets) as kept_writer:
        ids = [records.record(all_writer, messages, tools=tools) for messages, tools in conversations]
        for number, (messages, tools) in enumerate(conversations):
            if number not in doomed:
                records.record(kept_writer, messages, tools=tools)
    delete_trajectories(whole, [ids[number] for number in sorted(doomed)])
    assert content_of(whole) == content_of(kept)
    with Reader(whole) as left, Reader(kept) as right:
        for word in [*words[:-3], "half", "pair", "Grüße", "苹果"]:
            hits = [sorted(hit.snippet for hit in store.search(word, limit=99)) for store in (left, right)]
            assert hits[0] == hits[1], word
    gone = {name for name in words[:30] if not left_has(kept, name)}
    data = whole.read_bytes()
    assert not any(name.encode() + b" " in data for name in gone if name not in ("word7", "word8"))
    assert maintain.check(whole).problems == ()


def left_has(path: Path, word: str) -> bool:
    with Reader(path) as reader:
        return bool(reader.search(word))


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
