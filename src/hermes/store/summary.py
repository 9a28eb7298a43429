"""The short forms: one line of a listing, one hit of a search."""

from __future__ import annotations

import json
import re
import sqlite3
from dataclasses import dataclass
from typing import NamedTuple

from hermes.core import Message, StopReason, Usage
from hermes.store import owner
from hermes.store.encode import decoding, search_text
from hermes.store.query import JOINED, LATEST_RATING, LATEST_REWARD, TOTALS

RUNNING = "running"
_SNIPPET_CHARS = 160
_TASK_CHARS = 200


@dataclass(frozen=True, slots=True)
class Summary:
    id: str
    source: str
    model: str
    created_at_ms: int
    session_id: str | None
    run_id: str | None
    task_id: str | None
    parent_id: str | None
    relation: str | None
    stop_reason: str
    """A StopReason, or 'running'."""
    boundary: str | None
    turns: int
    tool_calls: int
    tool_errors: int
    usage: Usage
    cost_usd: float | None
    reward: float | None
    """The latest one."""
    rating: float | None
    """The latest one, on the 1…5 scale."""
    task: str
    """How the first user message begins; of another agent's session, how the user's own words begin."""
    agent: str | None = None
    """Whose session it is, if it is not one of Hermes."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    trajectory_id: str
    step_index: int
    role: str
    snippet: str
    created_at_ms: int


class TaskPrompt(NamedTuple):
    """The task of a trajectory."""

    run_id: str | None
    task_id: str | None
    prompt: str
    """Its first user message; empty if it has none."""


_BY_USER = """
FROM steps s JOIN messages m ON m.id = s.message
WHERE s.trajectory = t.seq AND NOT s.ephemeral AND m.role = 'user' ORDER BY s.idx
"""
SUMMARY = f"""
SELECT t.seq, t.id, t.source, t.model, t.created_at_ms, t.session_id, t.run_id, t.task_id, t.parent_id,
    t.relation, t.owner, t.metadata ->> '$.agent' AS agent, o.stop_reason, o.boundary, o.turns, o.tool_calls,
    o.tool_errors, o.input_tokens, o.cached_input_tokens, o.cache_write_tokens, o.output_tokens,
    o.reasoning_tokens, o.cost_usd,
    {LATEST_REWARD} AS reward, {LATEST_RATING} AS rating,
    CAST(iif(t.metadata ->> '$.agent' IS NULL,
        (SELECT substr(m.body ->> '$.content', 1, {_TASK_CHARS}) {_BY_USER} LIMIT 1),
        (SELECT group_concat(text, char(10)) FROM
            (SELECT substr(m.body ->> '$.content', 1, 20000) AS text {_BY_USER} LIMIT 3))) AS BLOB) AS task
{JOINED}
"""
_INSERTED = re.compile(r"\s*(?:(?:# AGENTS\.md[^\n]*+\s*+)?<([A-Za-z][\w-]*+)[^>]*+>.*?</\1>\s*)+", re.DOTALL)
"""The text that agents put before their user's words, in the same message or in messages of their own."""


@decoding("a trajectory")
def decode_summary(row: sqlite3.Row, connection: sqlite3.Connection) -> Summary:
    """An unfinished trajectory has no totals yet: they are summed from its steps so far."""
    totals, stop = row, row["stop_reason"]
    if stop is None:
        totals = connection.execute(f"SELECT {TOTALS}", (row["seq"],)).fetchone()
        stop = RUNNING if owner.is_alive(row["owner"]) else StopReason.CUT.value
    return Summary(
        id=row["id"],
        source=row["source"],
        model=row["model"],
        created_at_ms=row["created_at_ms"],
        session_id=row["session_id"],
        run_id=row["run_id"],
        task_id=row["task_id"],
        parent_id=row["parent_id"],
        relation=row["relation"],
        stop_reason=stop,
        boundary=row["boundary"],
        turns=totals["turns"],
        tool_calls=totals["tool_calls"],
        tool_errors=totals["tool_errors"],
        usage=Usage(
            totals["input_tokens"],
            totals["cached_input_tokens"],
            totals["cache_write_tokens"],
            totals["output_tokens"],
            totals["reasoning_tokens"],
        ),
        cost_usd=totals["cost_usd"],
        reward=row["reward"],
        rating=row["rating"],
        task=_task(_text(row["task"] or b""), row["agent"]),
        agent=None if row["agent"] is None else str(row["agent"]),
    )


def _task(text: str, agent: object) -> str:
    inserted = None if agent is None else _INSERTED.match(text)
    return (text if inserted is None else text[inserted.end() :] or text)[:_TASK_CHARS]


def _text(data: bytes) -> str:
    """SQLite writes an escaped lone surrogate as bytes that are no UTF-8."""
    return data.decode("utf-8", "replace")


@decoding("a message")
def snippet(body: str, query: str) -> str:
    """The stretch of a stored message around the first word of the query, on one line."""
    text = " ".join(search_text(Message.from_json(json.loads(body))).split())
    position = min((at for word in query.lower().split() if (at := text.lower().find(word)) >= 0), default=0)
    start = max(0, position - _SNIPPET_CHARS // 3)
    piece = text[start : start + _SNIPPET_CHARS]
    return f"{'…' if start else ''}{piece}{'…' if start + _SNIPPET_CHARS < len(text) else ''}"
