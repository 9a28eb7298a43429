"""Facts of the memory in the store: bounded, redacted, removable, and there after an upgrade."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hermes.core import Fact, FactAuthor, Message, new_id
from hermes.errors import HermesError, StoreError, UsageError
from hermes.store import Reader, Writer, migrations, sqlite
from tests import records


def fact(text: str, **changes: object) -> Fact:
    return replace(Fact(new_id(), text, FactAuthor.USER, 1_700_000_000_000), **changes)


def add(writer: Writer, entry: Fact, max_facts: int = 10) -> Fact:
    writer.add_fact(entry, max_facts).result()
    return entry


def refusal(writer: Writer, entry: Fact, max_facts: int = 10) -> str:
    with pytest.raises(HermesError) as failure:
        add(writer, entry, max_facts)
    return failure.value.message


def test_facts_are_there_for_the_next_process_with_the_step_they_come_from(db: Path, writer: Writer) -> None:
    trajectory_id = records.record(
        writer, [Message.user("I use metric units."), Message.assistant("Noted.")], session_id="S1"
    )
    first = add(writer, fact("uses metric units", trajectory_id=trajectory_id, step_index=1))
    second = add(writer, fact("works with kilns"))
    writer.close()
    with Reader(db) as reader:
        assert reader.facts() == [replace(first, session_id="S1"), second]
        assert reader.resolve_fact(first.id[-8:].lower()) == replace(first, session_id="S1")


def test_the_memory_is_bounded_and_has_each_text_once(db: Path, writer: Writer) -> None:
    first = add(writer, fact("one"), 2)
    add(writer, fact("two"), 2)
    assert refusal(writer, fact("one"), 3) == f"this is remembered already, as {first.id}"
    assert "full: it has 2 facts" in refusal(writer, fact("three"), 2)
    writer.remove_fact(first.id).result()
    add(writer, fact("three"), 2)
    with Reader(db) as reader:
        assert [entry.text for entry in reader.facts()] == ["two", "three"]


def test_a_fact_points_only_at_what_is_recorded(writer: Writer) -> None:
    trajectory_id = records.record(writer, [Message.user("hello")])
    assert "has no step 9" in refusal(writer, fact("x", trajectory_id=trajectory_id, step_index=9))
    with pytest.raises(StoreError, match="no trajectory"):
        add(writer, fact("x", trajectory_id=new_id()))


def test_secrets_are_redacted_before_a_fact_is_written(db: Path) -> None:
    with Writer(db, lambda text: text.replace("hunter2", "[REDACTED]")) as writer:
        add(writer, fact("the password is hunter2"))
    with Reader(db) as reader:
        assert [entry.text for entry in reader.facts()] == ["the password is [REDACTED]"]
    assert b"hunter2" not in b"".join(path.read_bytes() for path in db.parent.iterdir())


def test_a_removed_fact_is_gone_and_a_vague_name_removes_nothing(db: Path, writer: Writer) -> None:
    entry = add(writer, fact("one"))
    with Reader(db) as reader:
        for reference, problem in (("0", "too short"), ("ZZZZZZ", "matches no fact")):
            with pytest.raises(UsageError, match=problem):
                reader.resolve_fact(reference)
    writer.remove_fact(entry.id).result()
    with pytest.raises(UsageError, match="there is no fact"):
        writer.remove_fact(entry.id).result()


def test_a_store_from_before_the_memory_is_upgraded_and_keeps_its_record(
    db: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as older:
        older.setattr(migrations, "STEPS", migrations.STEPS[:2])
        with Writer(db) as writer:
            trajectory_id = records.record(writer, [Message.user("before")])
    with Reader(db) as reader:
        assert reader.facts() == [] and reader.get(trajectory_id).messages[0].content == "before"
    assert db.with_name(f"{db.name}.v2.bak").exists()
    with Writer(db) as writer:
        add(writer, fact("after", trajectory_id=trajectory_id, step_index=0))
    with sqlite.write_lock(db):
        assert migrations.version(sqlite.connect_reader(db)) == len(migrations.STEPS)
