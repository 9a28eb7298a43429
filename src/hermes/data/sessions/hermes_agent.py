"""hermes-agent: `state.db`, with sessions and their messages; a compression or a branch is another session.

Messages that were compacted away come first, and those that replaced them are a path of its own; messages
that a user took back are left out. Tokens are known of a session as a whole only, and so of no call.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from hermes.core import JSONObject, Relation, Role, Usage
from hermes.data.formats.turns import from_messages
from hermes.data.sessions.base import (
    Entry,
    Notes,
    Ref,
    Session,
    SessionPath,
    as_call,
    as_object,
    milliseconds,
)
from hermes.data.sessions.database import SessionDatabase, opened

AGENT = "hermes-agent"
TABLES = frozenset({"sessions", "messages"})
_PARTS = "\x00json:"
"""Before the content of a message that is a list of parts."""
_SEPARATE = (
    "session_reset",
    "session_switch",
    "idle",
    "daily",
    "suspended",
    "resume_pending_expired",
    "new_session",
)
"""Ends of a session after which the next one is another conversation."""
_ROLES = frozenset(Role)


def read(root: Path, path: Path, notes: Notes) -> Iterator[Session]:
    with opened(root, path, notes) as database:
        query = "SELECT id, end_reason FROM sessions ORDER BY started_at, id"
        ends = {str(row["id"]): str(row["end_reason"]) for row in database.rows(query)}
        for name in ends:
            row = next(database.rows("SELECT * FROM sessions WHERE id = ?", name), None)
            if row is None:  # an index says otherwise than its table
                notes.problem(0, f"the session {name} cannot be found: the file is damaged")
                continue
            yield Session(
                id=str(row["id"]),
                agent=AGENT,
                version=None,
                file=str(path),
                paths=_paths(database, row, ends, notes),
                load=partial(_load, database, row),
                line=lambda ref: ref.places[0],
                cwd=str(row["cwd"]) if row.get("cwd") else None,
                updated_ms=milliseconds(
                    row.get("last_activity_at") or row.get("ended_at") or row["started_at"]
                ),
            )


def _paths(
    database: SessionDatabase, session: JSONObject, ends: dict[str, str], notes: Notes
) -> list[SessionPath]:
    name = str(session["id"])
    relation, origins = _origin(session, ends)
    system = [] if _prompt(database, session) is None else [Ref(f"{name}:system", 0, (0,), 0)]
    replaced: list[Ref] = []
    refs: list[Ref] = []
    columns = "rowid AS at, length(content) AS size, *"
    query = f"SELECT {columns} FROM messages WHERE session_id = ? ORDER BY timestamp, id"
    for row in database.rows(query, name):
        if row["role"] not in _ROLES:
            notes.ignored[str(row["role"])] += 1
            continue
        answer = row["role"] == "assistant"
        size_bytes = int(row["size"] or 0) + len(str(row.get("tool_calls") or ""))
        ref = Ref(
            f"{name}:{row['id']}", milliseconds(row["timestamp"]), (int(row["at"]),), size_bytes, answer
        )
        if row.get("active", 1) != 0:
            refs.append(ref)
        if row.get("compacted"):
            replaced.append(ref)
    if not replaced:
        return [SessionPath([*_timed(system, refs), *refs], relation, origins)]
    first = SessionPath([*_timed(system, replaced), *replaced], relation, origins)
    again = [ref._replace(key=f"{ref.key}:compacted") for ref in _timed(system, refs)]
    return [first, SessionPath([*again, *refs], Relation.CONTINUED)]


def _timed(system: list[Ref], refs: list[Ref]) -> list[Ref]:
    return [ref._replace(at_ms=refs[0].at_ms if refs else 0) for ref in system]


def _origin(session: JSONObject, ends: dict[str, str]) -> tuple[Relation | None, tuple[str, ...]]:
    parent = session.get("parent_session_id")
    try:
        settings = as_object(json.loads(session.get("model_config") or "{}"))
    except ValueError:
        settings = {}
    end = ends.get(str(parent))
    if not parent or "_reset_from" in settings or end in _SEPARATE:
        return None, ()
    continued = end in ("compression", "branched") or "_branched_from" in settings
    return Relation.CONTINUED if continued else Relation.DELEGATE, (str(parent),)


def _prompt(database: SessionDatabase, session: JSONObject) -> str | None:
    if session.get("system_prompt"):
        return str(session["system_prompt"])
    if not session.get("system_prompt_hash"):
        return None
    rows = database.rows(
        "SELECT prompt FROM system_prompts WHERE hash = ?", str(session["system_prompt_hash"])
    )
    return next((str(row["prompt"]) for row in rows), None)


def _load(database: SessionDatabase, session: JSONObject, ref: Ref) -> Entry:
    if ref.places == (0,):
        (message,) = from_messages([{"role": "system", "content": _prompt(database, session)}])
        return Entry(message)
    row = database.row("messages", ref.places[0])
    content = row.get("content") or ""
    turn: JSONObject = {
        "role": row["role"],
        "content": json.loads(content[len(_PARTS) :]) if content.startswith(_PARTS) else content,
        "reasoning_content": row.get("reasoning_content") or row.get("reasoning"),
        "tool_calls": json.loads(row["tool_calls"]) if row.get("tool_calls") else None,
        "tool_call_id": row.get("tool_call_id"),
        "name": row.get("tool_name"),
    }
    (message,) = from_messages([turn])
    if message.role is Role.TOOL:
        exit_code, ok = _verdict(message.content)
        return Entry(message, ok=ok, exit_code=exit_code)
    if message.role is not Role.ASSISTANT:
        return Entry(message)
    provider = session.get("billing_provider")
    model = "/".join(str(name) for name in (provider, session.get("model")) if name)
    return Entry(message, as_call(model, Usage(), row.get("finish_reason")))


def _verdict(text: str) -> tuple[int | None, bool]:
    """The exit code, and whether the tool succeeded, as far as its result is JSON that says so."""
    try:
        value = as_object(json.loads(text))
    except (ValueError, RecursionError):
        return None, not text.lower().startswith("error:")
    code = value.get("exit_code")
    exit_code = code if isinstance(code, int) and not isinstance(code, bool) else None
    return exit_code, not (exit_code or value.get("error") or value.get("success") is False)
