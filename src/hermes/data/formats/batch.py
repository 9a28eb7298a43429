"""Rows of a batch run: the same fields in the same order in every row of every run.

A sample comes from the journal as the rollout described it. `dataset_row` gives it its final form: fields
that do not apply are null, `tool_stats` counts every tool that was offered (also those that were never
called), and calls of tools that were not offered are counted in `unknown_tools`. Fields without a column are
kept at the end.

A row is a whole sample with all its thinking. Where `thinking_shown` is false, `hermes export --run` has the
rows that show each call what it was shown.

Maps with open-ended keys cannot be columns of a stable schema. So in Parquet counts per tool are a list of
{tool, count, success, failure}, and `metadata` and `extra` (the fields without a column) are JSON texts.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from hermes.core import JSONObject, canonical_json, content_hash
from hermes.data.formats.base import Column, Format, ToolCallStyle

EXTRA = "extra"
"""The column of Parquet that JSONL rows do not have."""
COLUMNS = (
    Column("id", "string", "the trajectory's id in the store"),
    Column("key", "string", "the task: the row's own id, or a hash of its content"),
    Column("sample", "int64", "which sample of that task, from 0"),
    Column("conversations", "turns", "the turns: from (system, human, gpt, tool) and value"),
    Column("model", "string", "provider/model that answered"),
    Column("source", "string", "always `batch`"),
    Column("completed", "bool", "the model ended its turn by itself"),
    Column("outcome", "outcome", "how it ended; all but stop_reason is null if it completed"),
    Column("turns", "int64", "model calls"),
    Column("thinking_shown", "bool", "every call was shown all thinking before it; null in older rows"),
    Column("tool_names", "strings", "tools that were offered"),
    Column("toolsets", "strings", "toolsets they came from"),
    Column("tool_stats", "tools", "calls of each offered tool: count, success, failure"),
    Column("unknown_tools", "tools", "the same for calls of tools that were not offered"),
    Column("usage", "usage", "tokens, in five disjoint counters"),
    Column("cost_usd", "double", "null if a price is unknown"),
    Column("reward", "double", "null if there was no grader, or it failed"),
    Column("reward_error", "string", "why the grader failed"),
    Column("metadata", "string", "the task's other fields, as JSON"),
    Column("run_id", "string", "the run"),
    Column("task_id", "string", "equal to key"),
    Column("created_at_ms", "int64", "Unix time of the start"),
    Column("duration_s", "double", "wall clock, grading included"),
    Column("latency_ms", "doubles", "of each model call"),
    Column(EXTRA, "string", "fields without a column, as JSON; usually null"),
)
_NO_CALLS = {"count": 0, "success": 0, "failure": 0}
_CALL_ID = re.compile(r'(<tool_response>\n\{"tool_call_id": )"(?:[^"\\]|\\.)*"')


def dataset_row(sample: JSONObject) -> JSONObject:
    """A sample of the journal as a row of the dataset."""
    offered, counts = sample["tool_names"], sample["tool_stats"]
    fields = {column.name: sample.get(column.name) for column in COLUMNS if column.name != EXTRA}
    fields |= {
        "tool_stats": {tool: counts.get(tool, _NO_CALLS) for tool in offered},
        "unknown_tools": {tool: calls for tool, calls in counts.items() if tool not in offered},
        "metadata": sample.get("metadata") or {},
    }
    return fields | {name: field for name, field in sample.items() if name not in fields}


def table_row(row: JSONObject) -> JSONObject:
    """A row of the dataset in the types of the columns."""
    names = {column.name for column in COLUMNS}
    extra = {name: field for name, field in row.items() if name not in names}
    return {
        **{name: row.get(name) for name in names},
        "tool_stats": _counts_by_tool(row["tool_stats"]),
        "unknown_tools": _counts_by_tool(row["unknown_tools"]),
        "metadata": json.dumps(row["metadata"], ensure_ascii=False),
        EXTRA: json.dumps(extra, ensure_ascii=False) if extra else None,
    }


def content_digest(conversations: Sequence[JSONObject]) -> str:
    """Equal for conversations of the same text; the ids of tool calls, which are random, do not count."""
    turns = [
        {**turn, "value": _CALL_ID.sub(r'\1""', turn["value"])} if turn["from"] == "tool" else turn
        for turn in conversations
    ]
    return content_hash(canonical_json(turns))


def _counts_by_tool(counts: JSONObject) -> list[JSONObject]:
    return [{"tool": tool, **calls} for tool, calls in counts.items()]


def _write(sample: JSONObject, style: ToolCallStyle) -> tuple[JSONObject]:
    return (dataset_row(sample),)


FORMAT = Format(
    name="batch",
    version=2,
    summary="The rows of a batch run",
    columns=COLUMNS,
    write=_write,
    keeps=("the conversation", "outcome, usage, cost, reward and times", "the task's fields"),
    loses=("structure of calls and results (they are text)",),
    table_row=table_row,
)
"""Written from a run's journal, not from the store; so it is none of the formats that `hermes export`
offers."""
