"""Attempts at the samples of batch runs: a sample that was interrupted has more than one trajectory.

A run is told from another one of its name by the id that its headers carry (`config.run`).
"""

from __future__ import annotations

import sqlite3
from typing import NamedTuple

_SURPLUS = """
WITH continued AS (
    SELECT parent_id FROM trajectories WHERE relation = 'continued' AND source = 'batch'),
repeated AS (
    SELECT run_id, task_id, sample_index FROM trajectories
    WHERE run_id IS NOT NULL AND task_id IS NOT NULL GROUP BY 1, 2, 3 HAVING count(*) > 1),
attempts AS (
    SELECT t.id, row_number() OVER (
        PARTITION BY t.run_id, t.config ->> '$.run', t.task_id, t.sample_index
        ORDER BY t.id IN (SELECT parent_id FROM continued),
            o.stop_reason IS NOT 'completed', coalesce(o.boundary, 'host') NOT IN ('limit', 'model', 'task'),
            CASE WHEN o.stop_reason = 'completed' THEN t.seq ELSE -t.seq END) AS place
    FROM trajectories t JOIN repeated USING (run_id, task_id, sample_index)
    LEFT JOIN outcomes o ON o.trajectory = t.seq
    WHERE t.source = 'batch' AND t.relation IS NOT 'compressed'),
surplus AS (SELECT id FROM attempts WHERE place > 1)
SELECT id FROM surplus
UNION ALL SELECT id FROM trajectories WHERE relation = 'delegate' AND parent_id IN (SELECT id FROM surplus)
"""

_UNJOURNALED_COST = """
WITH RECURSIVE attempts (seq, parent_id, relation, created_at_ms, journaled) AS (
    SELECT t.seq, t.parent_id, t.relation, t.created_at_ms, {journaled} FROM trajectories t
    LEFT JOIN outcomes o ON o.trajectory = t.seq WHERE t.id = ?
    UNION ALL
    SELECT t.seq, t.parent_id, t.relation, t.created_at_ms, {journaled} FROM attempts a
    JOIN trajectories t ON t.id = a.parent_id LEFT JOIN outcomes o ON o.trajectory = t.seq
    WHERE a.relation = 'continued' AND NOT a.journaled)
SELECT coalesce(sum(s.body ->> '$.cost_usd'), 0.0) FROM attempts a JOIN steps s ON s.trajectory = a.seq
WHERE NOT a.journaled AND s.kind = 'model' AND s.started_at_ms >= a.created_at_ms
""".format(
    journaled="coalesce(o.boundary IN ('provider', 'tool', 'sandbox', 'grader', 'host')"
    " AND o.stop_reason <> 'cut' AND o.error_type IS NOT 'AuthError', 0)"
)
REPLAYED = "(t.relation = 'continued' AND t.source = 'batch' AND s.started_at_ms < t.created_at_ms)"
"""A step `s` that its trajectory `t` has from the attempt that it continues: its cost is counted there."""


class SampleName(NamedTuple):
    """One sample of a batch run, as the headers of its attempts name it."""

    run_id: str
    run: str
    """The id of the run itself: another run of the same name has another one."""
    task_id: str
    sample_index: int


def surplus_attempts(db: sqlite3.Connection) -> frozenset[str]:
    """Trajectories that are not their sample's row in a dataset, and the sub-agents of those.

    The row of a sample is its first completed attempt, else the newest one that the task, the model or a
    limit ended, else the newest. An attempt that another one continues is never the row.
    """
    return frozenset(row[0] for row in db.execute(_SURPLUS))


def unjournaled_cost_usd(db: sqlite3.Connection, trajectory_id: str) -> float:
    """The known cost of an attempt and of those that it continues, back to the last one whose failure is in
    the journal of its run. A step that an attempt has from an earlier one is counted once."""
    return float(db.execute(_UNJOURNALED_COST, (trajectory_id,)).fetchone()[0])


def latest_attempt(db: sqlite3.Connection, sample: SampleName) -> str | None:
    """The id of the newest trajectory of a sample; None if it has none."""
    row = db.execute(
        "SELECT id FROM trajectories WHERE run_id = ? AND config ->> '$.run' = ? AND task_id = ?"
        " AND sample_index = ? AND source = 'batch' ORDER BY seq DESC LIMIT 1",
        sample,
    ).fetchone()
    return None if row is None else str(row[0])
