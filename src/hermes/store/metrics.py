"""The numbers of a run, by step. Appended once; when a run resumes from an earlier step, the later numbers
are deleted."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import NamedTuple

SCHEMA = """
CREATE TABLE metrics (
    run_id TEXT NOT NULL,
    step INTEGER NOT NULL,
    name TEXT NOT NULL,
    value REAL NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (run_id, step, name)
) WITHOUT ROWID
"""


class StepMetrics(NamedTuple):
    step: int
    at_ms: int
    values: dict[str, float]


def insert(db: sqlite3.Connection, run_id: str, step: int, values: Mapping[str, float], at_ms: int) -> None:
    db.executemany(
        "INSERT OR IGNORE INTO metrics (run_id, step, name, value, at_ms) VALUES (?, ?, ?, ?, ?)",
        [(run_id, step, name, value, at_ms) for name, value in values.items()],
    )


def delete_after(db: sqlite3.Connection, run_id: str, step: int) -> None:
    db.execute("DELETE FROM metrics WHERE run_id = ? AND step > ?", (run_id, step))


def of_run(db: sqlite3.Connection, run_id: str) -> list[StepMetrics]:
    """In the order of the steps."""
    by_step: dict[int, StepMetrics] = {}
    rows = db.execute(
        "SELECT step, name, value, at_ms FROM metrics WHERE run_id = ? ORDER BY step, name", (run_id,)
    )
    for step, name, value, at_ms in rows:
        by_step.setdefault(step, StepMetrics(step, at_ms, {})).values[name] = value
    return list(by_step.values())
