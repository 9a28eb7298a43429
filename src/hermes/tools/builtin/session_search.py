"""session_search: full-text search over earlier trajectories, without the current one."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from hermes.core import JSONObject
from hermes.errors import ToolError
from hermes.tools.base import Tool, Workbench, object_schema

if TYPE_CHECKING:
    from hermes.store.summary import SearchHit

_OWN_HITS = 200
"""Hits requested beyond the limit, since those of the current trajectory are discarded."""


async def _session_search(arguments: JSONObject, bench: Workbench) -> str:
    home = bench.resources.get("home")
    if not isinstance(home, Path):
        raise ToolError("no record of earlier runs can be reached from here")
    limit = arguments.get("limit", 10)
    hits = await asyncio.to_thread(_search, home, arguments["query"], limit + _OWN_HITS)
    earlier = [hit for hit in hits if hit.trajectory_id != bench.trajectory_id]
    return json.dumps([_describe(hit) for hit in earlier[:limit]], ensure_ascii=False)


def _search(home: Path, query: str, limit: int) -> list[SearchHit]:
    from hermes.config.paths import db_path
    from hermes.store.reader import Reader

    with Reader(db_path(home)) as reader:
        return reader.search(query, limit=limit)


def _describe(hit: SearchHit) -> JSONObject:
    when = datetime.fromtimestamp(hit.created_at_ms / 1000, UTC)
    return {
        "trajectory": hit.trajectory_id,
        "step": hit.step_index,
        "role": hit.role,
        "date": when.strftime("%Y-%m-%d %H:%M"),
        "text": hit.snippet,
    }


TOOLS = (
    Tool(
        name="session_search",
        toolset="session_search",
        description=(
            "Search the text of earlier conversations and tool results. Every word of the query must "
            "occur. Returns a JSON array, best match first."
        ),
        parameters=object_schema(
            "query",
            query={"type": "string", "minLength": 1},
            limit={"type": "integer", "minimum": 1, "maximum": 50, "description": "10 if unset."},
        ),
        handler=_session_search,
        stateless=True,
    ),
)
