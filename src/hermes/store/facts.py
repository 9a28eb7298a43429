"""The facts of the memory. Unlike a trajectory, a fact can be removed.

A fact's text is unique. Removing a fact does not change the trajectory that it points at.
"""

from __future__ import annotations

import sqlite3
from dataclasses import replace

from hermes.core import Fact, FactAuthor
from hermes.errors import UsageError
from hermes.store.encode import decoding

_MIN_REFERENCE_CHARS = 6
SCHEMA = """
CREATE TABLE facts (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    text TEXT NOT NULL UNIQUE,
    author TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    trajectory INTEGER REFERENCES trajectories (seq),
    step_index INTEGER
)
"""


def insert(db: sqlite3.Connection, fact: Fact, trajectory: int | None, max_facts: int) -> None:
    """UsageError if the same text is there already, or if there are `max_facts`."""
    same = db.execute("SELECT id FROM facts WHERE text = ?", (fact.text,)).fetchone()
    if same is not None:
        raise UsageError(f"this is remembered already, as {same[0]}", "see 'hermes memory list'")
    count = db.execute("SELECT count(*) FROM facts").fetchone()[0]
    if count >= max_facts:
        raise UsageError(
            f"the memory is full: it has {count} facts, and memory.max_facts is {max_facts}",
            "remove one that is no longer needed, or raise memory.max_facts",
        )
    if trajectory is not None and fact.step_index is not None:
        step = "SELECT 1 FROM steps WHERE trajectory = ? AND idx = ?"
        if db.execute(step, (trajectory, fact.step_index)).fetchone() is None:
            raise UsageError(
                f"trajectory {fact.trajectory_id} has no step {fact.step_index}",
                f"see 'hermes trajectories show {fact.trajectory_id}'",
            )
    db.execute(
        "INSERT INTO facts (id, text, author, created_at_ms, trajectory, step_index)"
        " VALUES (?, ?, ?, ?, ?, ?)",
        (fact.id, fact.text, fact.author.value, fact.created_at_ms, trajectory, fact.step_index),
    )


def delete(db: sqlite3.Connection, fact_id: str) -> None:
    if not db.execute("DELETE FROM facts WHERE id = ?", (fact_id,)).rowcount:
        raise UsageError(f"there is no fact {fact_id}", "see 'hermes memory list'")


@decoding("a fact")
def select(db: sqlite3.Connection) -> list[Fact]:
    """Oldest first."""
    rows = db.execute(
        "SELECT f.id, f.text, f.author, f.created_at_ms, t.id, f.step_index, t.session_id"
        " FROM facts f LEFT JOIN trajectories t ON t.seq = f.trajectory ORDER BY f.seq"
    )
    facts = (Fact(*row) for row in rows)
    return [replace(fact, author=FactAuthor(fact.author)) for fact in facts]


def resolve(db: sqlite3.Connection, reference: str) -> Fact:
    """The fact with this id, or at least six characters of its beginning or end: a fact can be removed."""
    part = reference.upper()
    if len(part) < _MIN_REFERENCE_CHARS:
        raise UsageError(
            f"'{reference}' is too short to name a fact", "give six characters of its id or more"
        )
    matching = [fact for fact in select(db) if part in (fact.id[: len(part)], fact.id[-len(part) :])]
    if len(matching) != 1:
        problem = "matches more than one fact" if matching else "matches no fact"
        raise UsageError(f"'{reference}' {problem}", "see 'hermes memory list' for the ids")
    return matching[0]
