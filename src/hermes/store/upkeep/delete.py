"""Deletes trajectories for good, on a person's request: the one exception to "nothing is edited".

Steps, token traces, outcomes, rewards, ratings and places in rating queues go with a trajectory. Content that
nothing else refers to (messages, conversations, tool schemas) goes too, and the full-text index is made anew
from what is left. Facts of the memory stay, without their pointer. Deleted pages are overwritten with zeros;
`compact` returns their space. Backups, exports and batch folders are other files: they are not touched.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes.errors import StoreError, UsageError
from hermes.store import migrations, owner, sqlite
from hermes.store.encode import index_text

_COUNTED = ("trajectories", "steps", "messages", "ratings", "rewards")
_PAGE = 1_000
_LIVE_CONTEXTS = """
CREATE TEMP TABLE live_contexts AS
WITH RECURSIVE live (id) AS (
    SELECT DISTINCT context FROM steps WHERE context IS NOT NULL
    UNION SELECT c.parent FROM contexts c JOIN live ON live.id = c.id WHERE c.parent != 0)
SELECT id FROM live
"""
_OF_TRAJECTORY = (
    "DELETE FROM token_traces WHERE step IN (SELECT id FROM steps WHERE trajectory IN doomed)",
    "DELETE FROM steps WHERE trajectory IN doomed",
    "DELETE FROM outcomes WHERE trajectory IN doomed",
    "DELETE FROM rewards WHERE trajectory IN doomed",
    "DELETE FROM ratings WHERE trajectory IN doomed OR other_id IN (SELECT id FROM doomed_ids)",
    "DELETE FROM unfinished WHERE trajectory IN doomed",
    "DELETE FROM rating_leases WHERE (queue, item) IN (SELECT queue, item FROM doomed_items)",
    "DELETE FROM rating_skips WHERE (queue, item) IN (SELECT queue, item FROM doomed_items)",
    "DELETE FROM rating_items WHERE (queue, item) IN (SELECT queue, item FROM doomed_items)",
    "UPDATE facts SET trajectory = NULL, step_index = NULL WHERE trajectory IN doomed",
    "DELETE FROM trajectories WHERE seq IN doomed",
)
_UNUSED_CONTENT = (
    _LIVE_CONTEXTS,
    "DELETE FROM contexts WHERE id NOT IN (SELECT id FROM live_contexts)",
    "DELETE FROM messages WHERE id NOT IN (SELECT message FROM steps UNION SELECT message FROM contexts)",
    "DELETE FROM tool_schemas WHERE id NOT IN (SELECT tools FROM steps WHERE tools IS NOT NULL)",
)


@dataclass(frozen=True, slots=True)
class Deletion:
    """How many rows went, by kind."""

    counts: dict[str, int]


def derived_ids(connection: sqlite3.Connection, ids: Sequence[str]) -> list[str]:
    """Trajectories that were made from these (continued, retried, compressed, delegated), at any distance."""
    children: dict[str, None] = {}
    pending = list(ids)
    while pending:
        parent = pending.pop()
        rows = connection.execute("SELECT id FROM trajectories WHERE parent_id = ?", (parent,)).fetchall()
        for (child,) in rows:
            if child not in children and child not in ids:
                children[child] = None
                pending.append(child)
    return list(children)


def delete_trajectories(path: Path, ids: Sequence[str]) -> Deletion:
    """Deletes them in one transaction: all or none. UsageError if one of them is being recorded now."""
    try:
        with sqlite.write_lock(path):
            connection = sqlite.connect_writer(path)
            try:
                migrations.migrate(connection, path)
                return _delete(connection, ids)
            finally:
                connection.close()
    except sqlite.errors() as error:
        raise StoreError(
            f"cannot delete from {path}: {error}", "nothing was deleted; run 'hermes store check'"
        ) from error


def _delete(connection: sqlite3.Connection, ids: Sequence[str]) -> Deletion:
    # each deleted message would otherwise search every conversation; the statements keep the order
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("PRAGMA temp_store = MEMORY")
    connection.execute("BEGIN IMMEDIATE")
    try:
        _refuse_running(connection, ids)
        _mark(connection, ids)
        before = _counts(connection)
        for statement in (*_OF_TRAJECTORY, *_UNUSED_CONTENT):
            connection.execute(statement)
        _index_again(connection)
        after = _counts(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the log holds the old pages until then
    return Deletion({name: before[name] - after[name] for name in _COUNTED})


def _refuse_running(connection: sqlite3.Connection, ids: Sequence[str]) -> None:
    rows = connection.execute(
        "SELECT t.id, t.owner FROM unfinished u JOIN trajectories t ON t.seq = u.trajectory"
    ).fetchall()
    doomed_ids = set(ids)
    for trajectory_id, recorder in rows:
        if trajectory_id in doomed_ids and owner.is_alive(recorder):
            raise UsageError(
                f"{trajectory_id} is being recorded by process {recorder.partition(':')[0]}",
                "end that chat or run first",
            )


def _mark(connection: sqlite3.Connection, ids: Sequence[str]) -> None:
    connection.execute("CREATE TEMP TABLE doomed_ids (id TEXT PRIMARY KEY)")
    connection.executemany("INSERT OR IGNORE INTO doomed_ids VALUES (?)", [(name,) for name in ids])
    connection.execute(
        "CREATE TEMP TABLE doomed AS SELECT seq FROM trajectories WHERE id IN (SELECT id FROM doomed_ids)"
    )
    connection.execute(
        "CREATE TEMP TABLE doomed_items AS SELECT queue, item FROM rating_items"
        " WHERE trajectory_id IN (SELECT id FROM doomed_ids) OR other_id IN (SELECT id FROM doomed_ids)"
    )


def _index_again(connection: sqlite3.Connection) -> None:
    """The index has no text of its own, so single entries cannot be taken out."""
    connection.execute("INSERT INTO message_search (message_search) VALUES ('delete-all')")
    for rows in _pages(connection):
        texts = [(number, index_text(body)) for number, body in rows]
        connection.executemany("INSERT INTO message_search (rowid, text) VALUES (?, ?)", texts)


def _pages(connection: sqlite3.Connection) -> Iterator[list[tuple[int, str]]]:
    last = 0
    while rows := connection.execute(
        "SELECT id, body FROM messages WHERE id > ? ORDER BY id LIMIT ?", (last, _PAGE)
    ).fetchall():
        yield rows
        last = rows[-1][0]


def _counts(connection: sqlite3.Connection) -> dict[str, int]:
    return {name: connection.execute(f"SELECT count(*) FROM {name}").fetchone()[0] for name in _COUNTED}
