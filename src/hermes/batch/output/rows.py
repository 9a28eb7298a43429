"""The form of a dataset row: the same fields in the same order in every row of every run.

A row comes from the journal as the rollout described it. Here it gets its final shape: fields that do
not apply are null, `tool_stats` counts every tool that was offered (also those nobody called), and calls
of tools that were not offered are kept apart in `unknown_tools`. Fields this module does not know are
kept at the end. `data.lines` writes them so that any loader accepts them.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from hermes.core import JSONObject, canonical_json, content_hash

FIELDS = (
    "id",
    "key",
    "sample",
    "conversations",
    "model",
    "source",
    "completed",
    "outcome",
    "turns",
    "tool_names",
    "toolsets",
    "tool_stats",
    "unknown_tools",
    "usage",
    "cost_usd",
    "reward",
    "reward_error",
    "metadata",
    "run_id",
    "task_id",
    "created_at_ms",
    "duration_s",
    "latency_ms",
)
_NO_CALLS = {"count": 0, "success": 0, "failure": 0}
_CALL_ID = re.compile(r'(<tool_response>\n\{"tool_call_id": )"(?:[^"\\]|\\.)*"')


def shaped(row: JSONObject) -> JSONObject:
    """The row as the dataset has it."""
    called = row["tool_stats"]
    known: JSONObject = {
        "tool_stats": {tool: called.get(tool, _NO_CALLS) for tool in row["tool_names"]},
        "unknown_tools": {tool: counts for tool, counts in called.items() if tool not in row["tool_names"]},
        "metadata": row.get("metadata") or {},
    }
    fixed = {name: known[name] if name in known else row.get(name) for name in FIELDS}
    return fixed | {name: value for name, value in row.items() if name not in fixed}


def content_digest(conversations: Sequence[JSONObject]) -> str:
    """Equal for conversations that say the same; the ids of tool calls, which are random, do not count."""
    said = [
        {**turn, "value": _CALL_ID.sub(r'\1""', turn["value"])} if turn["from"] == "tool" else turn
        for turn in conversations
    ]
    return content_hash(canonical_json(said))
