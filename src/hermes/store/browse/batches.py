"""Runs of trajectories as the store knows them: by the index on runs, without reading the trajectories."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from hermes.store.query import JOINED, LATEST_REWARD

_MAX_RUNS = 500


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """Trajectories that share a run id."""

    run_id: str
    trajectories: int
    source: str
    model: str
    """Of the newest."""
    updated_at_ms: int


@dataclass(frozen=True, slots=True)
class EndCount:
    """How many trajectories of a run ended in one way."""

    stop_reason: str
    boundary: str | None
    error_type: str | None
    trajectories: int
    example_id: str


@dataclass(frozen=True, slots=True)
class RunTotals:
    trajectories: int
    tasks: int
    turns: int
    tokens: int
    cost_usd: float | None
    mean_reward: float | None
    rewarded: int


def recorded_runs(db: sqlite3.Connection) -> list[RecordedRun]:
    """Newest first, from one pass over the index of runs."""
    rows = db.execute(
        "SELECT run_id, count(*), max(seq) FROM trajectories WHERE run_id IS NOT NULL"
        " GROUP BY run_id ORDER BY 3 DESC LIMIT ?",
        (_MAX_RUNS,),
    ).fetchall()
    runs = []
    for run_id, trajectories, newest in rows:
        source, model, at_ms = db.execute(
            "SELECT source, model, created_at_ms FROM trajectories WHERE seq = ?", (newest,)
        ).fetchone()
        runs.append(RecordedRun(run_id, trajectories, source, model, at_ms))
    return sorted(runs, key=lambda run: run.updated_at_ms, reverse=True)


def ends_of(db: sqlite3.Connection, run_id: str) -> list[EndCount]:
    """By cause, the most frequent first."""
    rows = db.execute(
        f"SELECT coalesce(o.stop_reason, 'running'), o.boundary, o.error_type, count(*), max(t.id) {JOINED}"
        " WHERE t.run_id = ? GROUP BY 1, 2, 3 ORDER BY 4 DESC, 1 LIMIT 50",
        (run_id,),
    )
    return [EndCount(*row) for row in rows]


def totals_of(db: sqlite3.Connection, run_id: str) -> RunTotals:
    row = db.execute(
        "SELECT count(*), count(DISTINCT t.task_id), coalesce(sum(o.turns), 0), coalesce(sum(o.input_tokens"
        " + o.cached_input_tokens + o.cache_write_tokens + o.output_tokens + o.reasoning_tokens), 0),"
        f" sum(o.cost_usd), avg({LATEST_REWARD}), count({LATEST_REWARD}) {JOINED} WHERE t.run_id = ?",
        (run_id,),
    ).fetchone()
    return RunTotals(*row)
