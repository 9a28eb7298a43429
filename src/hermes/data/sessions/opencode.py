"""opencode: one database for all sessions; a message is a row, and its parts are rows of their own.

A tool's part has the call and its result. A user's message with a part of type `compaction` begins a new
history, of which the summary is the first answer. Forks get new ids and so cannot be recognised. The system
prompt and the tools are not in the database.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import groupby
from pathlib import Path

from hermes.core import Boundary, JSONObject, Message, Outcome, Relation, Role, StopReason, Usage
from hermes.data.sessions.base import (
    COMPACTED,
    Entry,
    Notes,
    Ref,
    Session,
    SessionPath,
    as_call,
    as_object,
    assistant,
    count,
    milliseconds,
    result,
    text_and_images,
    tool_call,
)
from hermes.data.sessions.database import SessionDatabase, opened, parsed

AGENT = "opencode"
TABLES = frozenset({"session", "message", "part"})
_COMPACTED = "What did we do so far?"
_ENDED = ("completed", "error")


def read(root: Path, path: Path, notes: Notes) -> Iterator[Session]:
    with opened(root, path, notes) as database:
        for name in [row["id"] for row in database.rows("SELECT id FROM session ORDER BY time_created, id")]:
            row = next(database.rows("SELECT * FROM session WHERE id = ?", name), None)
            if row is None:  # an index says otherwise than its table
                notes.problem(0, f"the session {name} cannot be found: the file is damaged")
                continue
            yield Session(
                id=str(row["id"]),
                agent=AGENT,
                version=str(row["version"]) if row.get("version") else None,
                file=str(path),
                paths=_paths(database, row, notes),
                load=partial(_load, database),
                line=lambda ref: ref.places[0],
                cwd=str(row["directory"]) if row.get("directory") else None,
                updated_ms=milliseconds(row.get("time_updated")),
            )


def _paths(database: SessionDatabase, session: JSONObject, notes: Notes) -> list[SessionPath]:
    parent = session.get("parent_id")
    relation = Relation.DELEGATE if parent else None
    origins: tuple[str, ...] = (str(session["id"]), str(parent)) if parent else ()
    paths: list[SessionPath] = []
    refs: list[Ref] = []
    outcome: Outcome | None = None
    query = (
        "SELECT m.rowid AS at, m.data AS message, m.time_created AS at_ms, m.id AS name, p.rowid AS part_at,"
        " p.id AS part_name, p.data AS part, length(p.data) AS size FROM message m LEFT JOIN part p"
        " ON p.message_id = m.id WHERE m.session_id = ? ORDER BY m.time_created, m.id, p.id"
    )
    for row_id, rows in groupby(database.rows(query, str(session["id"])), key=lambda row: int(row["at"])):
        parts = list(rows)
        try:
            message = parsed(parts[0]["message"])
            contents = [{} if row["part"] is None else parsed(row["part"]) for row in parts]
        except ValueError as error:
            notes.problem(row_id, f"a message that cannot be read: {error}")
            continue
        if any(part.get("type") == "compaction" for part in contents):
            cut = COMPACTED if refs and not refs[-1].answer else None
            paths.append(SessionPath(refs, relation, origins, outcome or cut))
            refs, relation, origins = [], Relation.CONTINUED, ()
        outcome = _outcome(message)
        refs += _refs(parts, message, contents)
    return [*paths, SessionPath(refs, relation, origins, outcome)]


def _refs(rows: list[JSONObject], message: JSONObject, parts: list[JSONObject]) -> Iterator[Ref]:
    """A question is one entry; an answer is one for each of its model calls, and one for each result."""
    name, row_id, at_ms = str(rows[0]["name"]), int(rows[0]["at"]), milliseconds(rows[0]["at_ms"])
    if message.get("role") != "assistant":
        yield Ref(name, at_ms, (row_id,), sum(int(row["size"] or 0) for row in rows))
        return
    steps: list[list[int]] = [[]]
    for index, part in enumerate(parts):
        if not part:
            continue
        if part.get("type") == "step-start" and steps[-1]:
            steps.append([])
        steps[-1].append(index)
    for step in steps:
        if not step:
            continue
        members = [rows[index] for index in step]
        places = tuple(int(row["part_at"]) for row in members)
        size_bytes = sum(int(row["size"] or 0) for row in members)
        copied = message.get("summary") is True
        key = str(members[-1]["part_name"])
        yield Ref(f"{name}:{key}", at_ms, (row_id, *places), size_bytes, answer=not copied, copied=copied)
        for index in step:
            state = as_object(parts[index].get("state"))
            if state.get("status") in _ENDED:
                link = as_object(state.get("metadata")).get("sessionId")
                part_name, part_at = str(rows[index]["part_name"]), int(rows[index]["part_at"])
                link_name = str(link) if link else None
                yield Ref(f"{part_name}:result", at_ms, (row_id, part_at), 0, copied=copied, link=link_name)


def _outcome(message: JSONObject) -> Outcome | None:
    error = as_object(message.get("error"))
    if not error:
        return None
    if error.get("name") == "MessageAbortedError":
        return Outcome(StopReason.CANCELLED, Boundary.USER)
    detail = str(as_object(error.get("data")).get("message") or error.get("name"))[:500]
    return Outcome(StopReason.ERROR, Boundary.PROVIDER, detail=detail)


def _load(database: SessionDatabase, ref: Ref) -> Entry:
    row = database.row("message", ref.places[0])
    message = parsed(row["data"])
    if ref.key.endswith(":result"):
        return _result(parsed(database.row("part", ref.places[1])["data"]))
    if len(ref.places) == 1:
        rows = database.rows("SELECT data FROM part WHERE message_id = ? ORDER BY id", str(row["id"]))
        return _question([parsed(part["data"]) for part in rows])
    parts = [parsed(database.row("part", row_id)["data"]) for row_id in ref.places[1:]]
    answer = assistant(
        (str(part.get("text") or "") for part in parts if part.get("type") == "text"),
        (str(part.get("text") or "") for part in parts if part.get("type") == "reasoning"),
        (
            tool_call(
                part.get("callID"), part.get("tool"), as_object(as_object(part.get("state")).get("input"))
            )
            for part in parts
            if part.get("type") == "tool"
        ),
    )
    if ref.copied:
        return Entry(answer)
    finish = next((part for part in parts if part.get("type") == "step-finish"), {})
    tokens = as_object(finish.get("tokens")) or as_object(message.get("tokens"))
    cache = as_object(tokens.get("cache"))
    usage = Usage(
        count(tokens, "input"),
        count(cache, "read"),
        count(cache, "write"),
        count(tokens, "output"),
        count(tokens, "reasoning"),
    )
    model = "/".join(str(message[name]) for name in ("providerID", "modelID") if message.get(name))
    cost = finish.get("cost") or message.get("cost")
    return Entry(
        answer, as_call(model, usage, finish.get("reason") or message.get("finish"), cost_usd=cost or None)
    )


def _question(parts: list[JSONObject]) -> Entry:
    texts = [part for part in parts if part.get("type") == "text" and not part.get("ignored")]
    files = [
        part for part in parts if part.get("type") == "file" and str(part.get("mime")).startswith("image/")
    ]
    text, images = text_and_images([*texts, *files])
    if not text and any(part.get("type") == "compaction" for part in parts):
        text = _COMPACTED
    return Entry(Message(Role.USER, text, images=images))


def _result(part: JSONObject) -> Entry:
    state = as_object(part.get("state"))
    times = as_object(state.get("time"))
    exit_code = as_object(state.get("metadata")).get("exit")
    failed = state.get("status") == "error"
    text = str(state.get("error") if failed else state.get("output") or "")
    number = exit_code if isinstance(exit_code, int) else None
    return Entry(
        result(part.get("callID"), part.get("tool"), text),
        ok=not failed and not number,
        exit_code=number,
        duration_ms=max(0.0, float(milliseconds(times.get("end")) - milliseconds(times.get("start")))),
    )
