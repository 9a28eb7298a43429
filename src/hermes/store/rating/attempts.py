"""Attempts: what a rating queue needs to know about many trajectories, from one query."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import dataclass

from hermes.store.query import JOINED, LATEST_REWARD, Filter

_ATTEMPTS = f"""
SELECT t.id, t.model, t.run_id, t.task_id, t.created_at_ms, {LATEST_REWARD} AS reward,
    (SELECT s.message FROM steps s JOIN messages m ON m.id = s.message
        WHERE s.trajectory = t.seq AND NOT s.ephemeral AND m.role = 'user'
        ORDER BY s.idx LIMIT 1) AS question,
    (SELECT w.detail FROM rewards w WHERE w.trajectory = t.seq AND w.source LIKE 'reward-model:%'
        ORDER BY w.id DESC LIMIT 1) AS model_detail,
    (SELECT w.value FROM rewards w WHERE w.trajectory = t.seq AND w.source LIKE 'reward-model:%'
        ORDER BY w.id DESC LIMIT 1) AS model_reward
{JOINED}
"""


@dataclass(frozen=True, slots=True)
class TaskAttempt:
    """One trajectory as an attempt at a task."""

    id: str
    task: str
    """Equal for attempts at one task: the task's id in its run, else the first message of the user."""
    model: str
    created_at_ms: int
    reward: float | None
    """The latest one."""
    model_reward: float | None
    """The latest one of a reward model."""
    model_spread: float | None
    """Standard deviation over the members of that reward model, where it has several."""


def select_attempts(db: sqlite3.Connection, filters: Filter) -> list[TaskAttempt]:
    """Those in which the model answered, oldest first; compressed versions are no attempts."""
    condition, values = filters.where()
    rows = db.execute(
        f"{_ATTEMPTS} WHERE {condition} AND o.stop_reason IS NOT NULL"
        " AND coalesce(t.relation, '') <> 'compressed'"
        " AND EXISTS (SELECT 1 FROM steps s WHERE s.trajectory = t.seq AND s.kind = 'model') ORDER BY t.seq",
        values,
    )
    return [
        TaskAttempt(
            row["id"],
            f"task:{row['run_id'] or ''}:{row['task_id']}"
            if row["task_id"] is not None
            else f"message:{row['question']}",
            row["model"],
            row["created_at_ms"],
            row["reward"],
            row["model_reward"],
            _spread(row["model_detail"]),
        )
        for row in rows
    ]


def _spread(detail: str | None) -> float | None:
    value = json.loads(detail).get("std") if detail else None
    return float(value) if isinstance(value, int | float) else None
