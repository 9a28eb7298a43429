"""Runs of trajectories as the store knows them: by the index on runs, without reading the trajectories."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from hermes.store.query import JOINED, LATEST_REWARD

_MAX_RUNS = 500


class RunCount(NamedTuple):
    run_id: str
    trajectories: int
    last: int
    """Position of the newest in the store."""


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """Trajectories that share a run id."""

    run_id: str
    trajectories: int
    source: str
    model: str
    """The model of the newest trajectory."""
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


def run_counts(db: sqlite3.Connection, after: int) -> list[RunCount]:
    """How many trajectories each run has beyond a position in the store, and the last of them."""
    hint = "NOT INDEXED" if after else ""  # by position where little is new, by the index of runs at first
    rows = db.execute(
        f"SELECT run_id, count(*), max(seq) FROM trajectories {hint} WHERE run_id IS NOT NULL AND seq > ?"
        " GROUP BY run_id",
        (after,),
    )
    return [RunCount(*row) for row in rows]


def recorded_runs(db: sqlite3.Connection, counts: Iterable[RunCount]) -> list[RecordedRun]:
    """The runs with the newest trajectories, newest first."""
    newest = sorted(counts, key=lambda entry: entry.last, reverse=True)[:_MAX_RUNS]
    runs = []
    for run_id, trajectories, last in newest:
        source, model, at_ms = db.execute(
            "SELECT source, model, created_at_ms FROM trajectories WHERE seq = ?", (last,)
        ).fetchone()
        runs.append(RecordedRun(run_id, trajectories, source, model, at_ms))
    return runs


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
        "SELECT count(*), count(DISTINCT task_id), coalesce(sum(turns), 0), coalesce(sum(tokens), 0),"
        " sum(cost_usd), avg(reward), count(reward) FROM (SELECT t.task_id, o.turns, o.input_tokens"
        " + o.cached_input_tokens + o.cache_write_tokens + o.output_tokens + o.reasoning_tokens AS tokens,"
        f" o.cost_usd, {LATEST_REWARD} AS reward {JOINED} WHERE t.run_id = ? LIMIT -1)",
        (run_id,),
    ).fetchone()
    return RunTotals(*row)
