"""Deletes trajectories for good, on a person's request: the one exception to "nothing is edited".

Steps, token traces, outcomes, rewards, ratings and places in rating queues go with a trajectory. Content that
nothing else refers to (messages, conversations, tool schemas) goes too, and so do its words in the full-text
index; what other trajectories have is not read. Facts of the memory stay, without their pointer. Deleted
pages are overwritten with zeros; `compact` returns their space. Backups, exports and batch folders are other
files: they are not touched.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hermes.errors import StoreError, UsageError
from hermes.store import migrations, owner, sqlite
from hermes.store.encode import index_text

_MOST_SINGLY = 10_000
_SECURE_DELETE_VERSION = (3, 42)
"""The first SQLite whose full-text index can remove the words of one entry from the disk."""
_CANDIDATES = (
    "CREATE TEMP TABLE doomed_contexts (id INTEGER PRIMARY KEY)",
    """
    INSERT INTO doomed_contexts WITH RECURSIVE above (id) AS (
        SELECT context FROM steps WHERE trajectory IN doomed AND context IS NOT NULL
        UNION SELECT c.parent FROM contexts c JOIN above ON c.id = above.id WHERE c.parent != 0)
    SELECT id FROM above
    """,
    "CREATE TEMP TABLE doomed_messages (id INTEGER PRIMARY KEY)",
    """
    INSERT INTO doomed_messages SELECT message FROM steps WHERE trajectory IN doomed
    UNION SELECT message FROM contexts WHERE id IN doomed_contexts
    """,
    """
    CREATE TEMP TABLE doomed_tools AS SELECT DISTINCT tools FROM steps
    WHERE trajectory IN doomed AND tools IS NOT NULL
    """,
)
"""The content that the trajectories refer to, before they are deleted."""
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
    """
    CREATE TEMP TABLE live_contexts AS WITH RECURSIVE live (id) AS (
        SELECT id FROM doomed_contexts d WHERE EXISTS (SELECT 1 FROM steps s WHERE s.context = d.id)
            OR EXISTS (SELECT 1 FROM contexts c WHERE c.parent = d.id AND c.id NOT IN doomed_contexts)
        UNION SELECT c.parent FROM contexts c JOIN live ON live.id = c.id WHERE c.parent != 0)
    SELECT id FROM live
    """,
    "DELETE FROM contexts WHERE id IN doomed_contexts AND id NOT IN live_contexts",
    """
    DELETE FROM doomed_messages WHERE EXISTS (SELECT 1 FROM steps s WHERE s.message = doomed_messages.id)
        OR EXISTS (SELECT 1 FROM contexts c WHERE c.message = doomed_messages.id)
    """,
    """
    DELETE FROM tool_schemas WHERE id IN doomed_tools
        AND NOT EXISTS (SELECT 1 FROM steps s WHERE s.tools = tool_schemas.id)
    """,
)
"""Deletes content that nothing else refers to; afterwards `doomed_messages` has the messages to delete."""
_COUNTED = ("trajectories", "steps", "messages", "ratings", "rewards")


@dataclass(frozen=True, slots=True)
class Deletion:
    """How many rows went, by kind."""

    counts: dict[str, int]


def derived_ids(connection: sqlite3.Connection, ids: Sequence[str]) -> list[str]:
    """Trajectories that were made from these (continued, retried, compressed, delegated), at any distance."""
    children: dict[str, None] = {}
    parents, pending = set(ids), list(ids)
    while pending:
        parent = pending.pop()
        rows = connection.execute("SELECT id FROM trajectories WHERE parent_id = ?", (parent,)).fetchall()
        for (child,) in rows:
            if child not in children and child not in parents:
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
        counts = dict.fromkeys(_COUNTED, 0)
        for statement in (*_CANDIDATES, *_OF_TRAJECTORY, *_UNUSED_CONTENT):
            deleted = connection.execute(statement).rowcount
            for name in _COUNTED:
                if statement.startswith(f"DELETE FROM {name} "):
                    counts[name] += deleted
        counts["messages"] = _delete_messages(connection)
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")  # the log holds the old pages until then
    return Deletion(counts)


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


def _delete_messages(connection: sqlite3.Connection) -> int:
    """Deletes `doomed_messages` and their words in the full-text index; their number.

    The index has no text of its own: an entry is removed by giving its text again. If there are many, the
    index is made anew.
    """
    doomed = "FROM messages WHERE id IN (SELECT id FROM doomed_messages)"
    count = int(connection.execute(f"SELECT count(*) {doomed}").fetchone()[0])
    if count <= _MOST_SINGLY:
        _remove_entries(connection, connection.execute(f"SELECT id, body {doomed}").fetchall())
    connection.execute(f"DELETE {doomed}")
    if count > _MOST_SINGLY:
        migrations.rebuild_search(connection)
    return count


def _remove_entries(connection: sqlite3.Connection, rows: Sequence[tuple[int, str]]) -> None:
    secure = sqlite.dbapi().sqlite_version_info >= _SECURE_DELETE_VERSION
    if secure:
        connection.execute("INSERT INTO message_search (message_search, rank) VALUES ('secure-delete', 1)")
    connection.executemany(
        "INSERT INTO message_search (message_search, rowid, text) VALUES ('delete', ?, ?)",
        [(number, index_text(body)) for number, body in rows],
    )
    if not secure:  # the words of removed entries stay on disk until the index is merged
        connection.execute("INSERT INTO message_search (message_search) VALUES ('optimize')")
