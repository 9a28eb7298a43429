"""Figures over many trajectories, computed in the database."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from hermes.core import Usage
from hermes.store.query import JOINED, LATEST_RATING, LATEST_REWARD, Filter


@dataclass(frozen=True, slots=True)
class ToolStats:
    calls: int
    failures: int
    by_error: dict[str, int]


@dataclass(frozen=True, slots=True)
class Stats:
    trajectories: int
    by_stop_reason: dict[str, int]
    """Trajectories without an outcome count as 'running'."""
    by_model: dict[str, int]
    by_source: dict[str, int]
    turns: int
    usage: Usage
    cost_usd: float | None
    """Sum over the trajectories whose price is known; None if there is none."""
    unpriced: int
    """Finished trajectories without a known price."""
    tools: dict[str, ToolStats]
    mean_reward: float | None
    rewarded: int
    mean_rating: float | None
    rated: int


def statistics(connection: sqlite3.Connection, filters: Filter) -> Stats:
    condition, values = filters.where()
    chosen = f"{JOINED} WHERE {condition}"

    def counts(expression: str) -> dict[str, int]:
        rows = connection.execute(
            f"SELECT {expression}, count(*) {chosen} GROUP BY 1 ORDER BY 2 DESC, 1", values
        )
        return dict(rows.fetchall())

    totals = connection.execute(
        "SELECT count(*), coalesce(sum(o.turns), 0), coalesce(sum(o.input_tokens), 0),"
        " coalesce(sum(o.cached_input_tokens), 0), coalesce(sum(o.cache_write_tokens), 0),"
        " coalesce(sum(o.output_tokens), 0), coalesce(sum(o.reasoning_tokens), 0), sum(o.cost_usd),"
        " count(*) FILTER (WHERE o.trajectory IS NOT NULL AND o.cost_usd IS NULL),"
        f" avg({LATEST_REWARD}), count({LATEST_REWARD}), avg({LATEST_RATING}), count({LATEST_RATING})"
        f" {chosen}",
        values,
    ).fetchone()
    return Stats(
        trajectories=totals[0],
        by_stop_reason=counts("coalesce(o.stop_reason, 'running')"),
        by_model=counts("t.model"),
        by_source=counts("t.source"),
        turns=totals[1],
        usage=Usage(*totals[2:7]),
        cost_usd=totals[7],
        unpriced=totals[8],
        tools=_tool_stats(connection, chosen, values),
        mean_reward=totals[9],
        rewarded=totals[10],
        mean_rating=totals[11],
        rated=totals[12],
    )


def _tool_stats(connection: sqlite3.Connection, chosen: str, values: list[object]) -> dict[str, ToolStats]:
    rows = connection.execute(
        "SELECT tool, body ->> '$.error_kind', count(*) FROM steps"
        f" WHERE kind = 'tool' AND trajectory IN (SELECT t.seq {chosen}) GROUP BY 1, 2 ORDER BY 1, 2",
        values,
    )
    gathered: dict[str, dict[str | None, int]] = {}
    for tool, error, count in rows:
        gathered.setdefault(tool, {})[error] = count
    return {
        tool: ToolStats(
            calls=sum(by_error.values()),
            failures=sum(count for error, count in by_error.items() if error),
            by_error={error: count for error, count in by_error.items() if error},
        )
        for tool, by_error in gathered.items()
    }
