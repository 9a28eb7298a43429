"""The schema, as the ordered list of steps that built it.

`PRAGMA user_version` counts the steps a database has had. Opening an older database makes a copy
first (`<name>.v<N>.bak`), then applies what is missing in one transaction; a newer database is
refused, because an older program would write rows the newer one does not understand. Released steps
are never edited: a change of schema is a new step at the end.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

from hermes.errors import StoreError
from hermes.store import facts, metrics
from hermes.store.encode import index_text
from hermes.store.rating import events

_FOUNDATION = """
CREATE TABLE messages (
    id INTEGER PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    role TEXT NOT NULL,
    body TEXT NOT NULL,
    redacted INTEGER NOT NULL
);
-- A trie of conversations: a node is 'this message after that node', so shared prefixes exist once.
CREATE TABLE contexts (
    id INTEGER PRIMARY KEY,
    parent INTEGER NOT NULL,
    message INTEGER NOT NULL REFERENCES messages (id),
    redacted INTEGER NOT NULL,
    UNIQUE (parent, message)
);
CREATE TABLE tool_schemas (
    id INTEGER PRIMARY KEY,
    hash TEXT NOT NULL UNIQUE,
    body TEXT NOT NULL
);
CREATE TABLE trajectories (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    source TEXT NOT NULL,
    model TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    session_id TEXT,
    run_id TEXT,
    task_id TEXT,
    sample_index INTEGER NOT NULL,
    parent_id TEXT,
    relation TEXT,
    tools TEXT NOT NULL,
    config TEXT NOT NULL,
    metadata TEXT NOT NULL,
    owner TEXT NOT NULL
);
CREATE INDEX trajectories_by_time ON trajectories (created_at_ms);
CREATE INDEX trajectories_by_run ON trajectories (run_id, task_id, sample_index);
CREATE INDEX trajectories_by_session ON trajectories (session_id);
CREATE INDEX trajectories_by_parent ON trajectories (parent_id);
CREATE INDEX trajectories_by_model ON trajectories (model);
-- Bookkeeping, not record: which trajectories still wait for their outcome.
CREATE TABLE unfinished (
    trajectory INTEGER PRIMARY KEY REFERENCES trajectories (seq)
);
CREATE TABLE steps (
    id INTEGER PRIMARY KEY,
    trajectory INTEGER NOT NULL REFERENCES trajectories (seq),
    idx INTEGER NOT NULL,
    kind TEXT NOT NULL,
    message INTEGER NOT NULL REFERENCES messages (id),
    started_at_ms INTEGER NOT NULL,
    ephemeral INTEGER NOT NULL,
    tool TEXT,
    ok INTEGER,
    body TEXT,
    context INTEGER,
    tools INTEGER REFERENCES tool_schemas (id),
    raw TEXT,
    UNIQUE (trajectory, idx)
);
CREATE INDEX steps_by_tool ON steps (tool, trajectory) WHERE tool IS NOT NULL;
CREATE INDEX steps_by_message ON steps (message);
CREATE TABLE token_traces (
    step INTEGER PRIMARY KEY REFERENCES steps (id),
    prompt_ids BLOB NOT NULL,
    sampled_ids BLOB NOT NULL,
    logprobs BLOB NOT NULL,
    policy_version TEXT
);
CREATE TABLE outcomes (
    trajectory INTEGER PRIMARY KEY REFERENCES trajectories (seq),
    stop_reason TEXT NOT NULL,
    boundary TEXT,
    error_type TEXT,
    detail TEXT,
    finished_at_ms INTEGER NOT NULL,
    turns INTEGER NOT NULL,
    tool_calls INTEGER NOT NULL,
    tool_errors INTEGER NOT NULL,
    input_tokens INTEGER NOT NULL,
    cached_input_tokens INTEGER NOT NULL,
    cache_write_tokens INTEGER NOT NULL,
    output_tokens INTEGER NOT NULL,
    reasoning_tokens INTEGER NOT NULL,
    cost_usd REAL
);
CREATE INDEX outcomes_by_reason ON outcomes (stop_reason);
CREATE TABLE rewards (
    id INTEGER PRIMARY KEY,
    trajectory INTEGER NOT NULL REFERENCES trajectories (seq),
    value REAL NOT NULL,
    source TEXT NOT NULL,
    detail TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL
);
CREATE INDEX rewards_by_trajectory ON rewards (trajectory);
CREATE TABLE ratings (
    seq INTEGER PRIMARY KEY,
    id TEXT NOT NULL UNIQUE,
    trajectory INTEGER NOT NULL REFERENCES trajectories (seq),
    kind TEXT NOT NULL,
    value REAL NOT NULL,
    rater TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    other_id TEXT,
    step_index INTEGER,
    comment TEXT,
    elapsed_ms REAL,
    replaces TEXT
);
CREATE INDEX ratings_by_trajectory ON ratings (trajectory);
CREATE INDEX ratings_by_replaced ON ratings (replaces) WHERE replaces IS NOT NULL;
CREATE VIRTUAL TABLE message_search USING fts5 (text, content = '', tokenize = 'unicode61');
"""

_REFERENCES = """
-- For deletion: who else refers to a conversation, a tool schema or a message.
CREATE INDEX steps_by_context ON steps (context) WHERE context IS NOT NULL;
CREATE INDEX steps_by_tools ON steps (tools) WHERE tools IS NOT NULL;
CREATE INDEX contexts_by_message ON contexts (message);
"""


def rebuild_search(connection: sqlite3.Connection) -> None:
    """Makes the full-text index anew from the stored messages."""
    connection.execute("INSERT INTO message_search (message_search) VALUES ('delete-all')")
    connection.create_function("index_text", 1, index_text, deterministic=True)
    connection.execute("INSERT INTO message_search (rowid, text) SELECT id, index_text(body) FROM messages")


STEPS: tuple[str | Callable[[sqlite3.Connection], None], ...] = (
    *(_FOUNDATION, metrics.SCHEMA, facts.SCHEMA, events.SCHEMA, _REFERENCES),
    rebuild_search,  # scripts without spaces were long words, and arguments of calls had their escapes
    rebuild_search,  # results that are JSON had their escapes, and characters were not normalised
)


def version(connection: sqlite3.Connection) -> int:
    number: int = connection.execute("PRAGMA user_version").fetchone()[0]
    return number


def migrate(connection: sqlite3.Connection, path: Path | None) -> None:
    """Brings the database to the newest schema; the backup is written beside `path` (None: no backup)."""
    current = version(connection)
    if current == len(STEPS):
        return
    refuse_newer(current, path)
    if current > 0 and path is not None:
        backup = path.with_name(f"{path.name}.v{current}.bak")
        if not backup.exists():
            connection.execute("VACUUM INTO ?", (str(backup),))
            backup.chmod(0o600)
    connection.execute("BEGIN IMMEDIATE")
    try:
        for step in STEPS[current:]:
            if callable(step):
                step(connection)
                continue
            for statement in _statements(step):
                connection.execute(statement)
        connection.execute(f"PRAGMA user_version = {len(STEPS)}")
        connection.execute("COMMIT")
    except BaseException:
        connection.execute("ROLLBACK")
        raise


def refuse_newer(current: int, path: Path | None) -> None:
    if current > len(STEPS):
        raise StoreError(
            f"the database {path} has schema {current}; this version of Hermes knows up to {len(STEPS)}",
            "upgrade Hermes, or point HERMES_HOME at another directory",
        )


def _statements(script: str) -> list[str]:
    """Splits a script; our own schema text has no semicolon inside a statement."""
    return [part for part in script.split(";") if part.strip()]
