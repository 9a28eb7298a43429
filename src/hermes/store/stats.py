"""Figures over many trajectories, computed in the database."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from hermes.core import Usage
from hermes.store.query import JOINED, LATEST_RATING, LATEST_REWARD, Filter
from hermes.store.samples import REPLAYED


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


_REPLAYED = f"""
SELECT count(*), coalesce(sum(s.body ->> '$.usage.input_tokens'), 0),
    coalesce(sum(s.body ->> '$.usage.cached_input_tokens'), 0),
    coalesce(sum(s.body ->> '$.usage.cache_write_tokens'), 0),
    coalesce(sum(s.body ->> '$.usage.output_tokens'), 0),
    coalesce(sum(s.body ->> '$.usage.reasoning_tokens'), 0), coalesce(sum(s.body ->> '$.cost_usd'), 0.0)
FROM steps s JOIN trajectories t ON t.seq = s.trajectory
WHERE t.relation = 'continued' AND s.kind = 'model' AND {REPLAYED} AND t.seq IN (SELECT t.seq {{chosen}})
"""
"""Model calls that a continued trajectory has from an earlier one: they were made and paid once."""


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
    replayed = connection.execute(_REPLAYED.format(chosen=chosen), values).fetchone()
    usage = [total - again for total, again in zip(totals[2:7], replayed[1:6], strict=True)]
    return Stats(
        trajectories=totals[0],
        by_stop_reason=counts("coalesce(o.stop_reason, 'running')"),
        by_model=counts("t.model"),
        by_source=counts("t.source"),
        turns=totals[1] - replayed[0],
        usage=Usage(*usage),
        cost_usd=None if totals[7] is None else totals[7] - replayed[6],
        unpriced=totals[8],
        tools=_tool_stats(connection, chosen, values),
        mean_reward=totals[9],
        rewarded=totals[10],
        mean_rating=totals[11],
        rated=totals[12],
    )


def _tool_stats(connection: sqlite3.Connection, chosen: str, values: list[object]) -> dict[str, ToolStats]:
    rows = connection.execute(
        "SELECT s.tool, s.body ->> '$.error_kind', count(*)"
        " FROM steps s JOIN trajectories t ON t.seq = s.trajectory"
        f" WHERE s.kind = 'tool' AND {REPLAYED} IS NOT 1 AND t.seq IN (SELECT t.seq {chosen})"
        " GROUP BY 1, 2 ORDER BY 1, 2",
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
