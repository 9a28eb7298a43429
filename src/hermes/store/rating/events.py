"""The rows of ratings: appended once, checked against what is stored, counted until they are replaced.

Inserting the same event a second time changes nothing, so that a client can resend what it does not know to
have arrived; the same id with another content is refused.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from hermes.core import RaterSource, Rating, RatingKind
from hermes.core.rating import rating_problem
from hermes.errors import UsageError
from hermes.store.encode import decoding
from hermes.store.query import JOINED, LATEST_REWARD, Filter

SCHEMA = """
ALTER TABLE ratings ADD COLUMN other_step INTEGER;
ALTER TABLE ratings ADD COLUMN shown_first TEXT;
ALTER TABLE ratings ADD COLUMN source TEXT NOT NULL DEFAULT 'person';
ALTER TABLE ratings ADD COLUMN labels TEXT NOT NULL DEFAULT '[]';
ALTER TABLE ratings ADD COLUMN queue TEXT;
ALTER TABLE ratings ADD COLUMN item TEXT;
CREATE INDEX ratings_by_other ON ratings (other_id) WHERE other_id IS NOT NULL;
CREATE INDEX ratings_by_queue ON ratings (queue, item, rater) WHERE queue IS NOT NULL;
CREATE TABLE rating_queues (
    name TEXT PRIMARY KEY,
    settings TEXT NOT NULL,
    created_at_ms INTEGER NOT NULL,
    first_open INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE rating_items (
    queue TEXT NOT NULL REFERENCES rating_queues (name),
    position INTEGER NOT NULL,
    item TEXT NOT NULL,
    trajectory_id TEXT NOT NULL,
    other_id TEXT,
    why TEXT NOT NULL,
    PRIMARY KEY (queue, position),
    UNIQUE (queue, item)
) WITHOUT ROWID;
-- Bookkeeping, not record: which rater has an item before them, until when, and which items they skipped.
CREATE TABLE rating_leases (
    queue TEXT NOT NULL,
    item TEXT NOT NULL,
    rater TEXT NOT NULL,
    until_ms INTEGER NOT NULL,
    PRIMARY KEY (queue, item)
) WITHOUT ROWID;
CREATE TABLE rating_skips (
    queue TEXT NOT NULL,
    item TEXT NOT NULL,
    rater TEXT NOT NULL,
    at_ms INTEGER NOT NULL,
    PRIMARY KEY (queue, item, rater)
) WITHOUT ROWID
"""

COUNTS = (
    "r.kind <> 'withdraw' AND NOT EXISTS"
    " (SELECT 1 FROM ratings newer WHERE newer.replaces = r.id AND newer.replaces IS NOT NULL)"
)
"""Condition: the event `r` is a verdict that nothing has replaced."""

ABOUT = (
    "r.seq IN (SELECT own.seq FROM ratings own"
    " WHERE own.trajectory = (SELECT seq FROM trajectories WHERE id = ?1)"
    " UNION ALL SELECT rival.seq FROM ratings rival WHERE rival.other_id = ?1)"
)
"""Condition: the event `r` is about the trajectory ?1, on either side. Both halves use an index."""

_COLUMNS = (
    "id, trajectory, kind, value, rater, created_at_ms, other_id, step_index, comment, elapsed_ms, replaces,"
    " other_step, shown_first, source, labels, queue, item"
)
_SELECT = "SELECT r.*, t.id AS trajectory_id FROM ratings r JOIN trajectories t ON t.seq = r.trajectory"


def insert(db: sqlite3.Connection, rating: Rating, trajectory: int) -> None:
    """Appends the event as it is; StoreError or IntegrityError if its id is taken."""
    db.execute(
        f"INSERT INTO ratings ({_COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            rating.id,
            trajectory,
            rating.kind.value,
            rating.value,
            rating.rater,
            rating.created_at_ms,
            rating.other_id,
            rating.step_index,
            rating.comment,
            rating.elapsed_ms,
            rating.replaces,
            rating.other_step,
            rating.shown_first,
            rating.source.value,
            json.dumps(rating.labels),
            rating.queue,
            rating.item,
        ),
    )


def is_stored(db: sqlite3.Connection, rating: Rating) -> bool:
    """Whether this very event is there; UsageError if its id is taken by another one."""
    row = db.execute(f"{_SELECT} WHERE r.id = ?", (rating.id,))
    names = [column[0] for column in row.description]
    values = row.fetchone()
    if values is None:
        return False
    stored = decode(dict(zip(names, values, strict=True)))
    # A resent request may have been built anew: its time is not what makes it another event.
    if replace(stored, created_at_ms=0, elapsed_ms=None) != replace(rating, created_at_ms=0, elapsed_ms=None):
        raise UsageError(
            f"the rating {rating.id} is stored already, with another content",
            "make a new id for a new rating; to correct one, name it in 'replaces'",
        )
    return True


def check(db: sqlite3.Connection, rating: Rating) -> None:
    """UsageError if the event is out of range or names a step, trajectory or rating that does not exist."""
    problem = rating_problem(rating)
    if problem is not None:
        raise UsageError(problem, "nothing was recorded")
    if rating.other_id is not None and _sequence(db, rating.other_id) is None:
        raise UsageError(f"no trajectory {rating.other_id}", "see 'hermes trajectories list'")
    for trajectory_id, index in (
        (rating.trajectory_id, rating.step_index),
        (rating.other_id, rating.other_step),
    ):
        if trajectory_id is not None and index is not None:
            _check_step(db, trajectory_id, index)
    if rating.replaces is not None:
        _check_replaced(db, rating)


def _check_step(db: sqlite3.Connection, trajectory_id: str, index: int) -> None:
    row = db.execute(
        "SELECT kind FROM steps WHERE trajectory = ? AND idx = ?", (_sequence(db, trajectory_id), index)
    ).fetchone()
    hint = f"see 'hermes trajectories show {trajectory_id}' for its steps"
    if row is None:
        raise UsageError(f"trajectory {trajectory_id} has no step {index}", hint)
    if row[0] != "model":
        raise UsageError(
            f"step {index} of {trajectory_id} is not an answer of the model but a {row[0]} step", hint
        )


def _check_replaced(db: sqlite3.Connection, rating: Rating) -> None:
    row = db.execute(
        "SELECT t.id, r.kind, (SELECT newer.id FROM ratings newer WHERE newer.replaces = r.id LIMIT 1)"
        " FROM ratings r JOIN trajectories t ON t.seq = r.trajectory WHERE r.id = ?",
        (rating.replaces,),
    ).fetchone()
    if row is None:
        raise UsageError(f"there is no rating {rating.replaces} to replace", "see 'hermes rate list'")
    trajectory_id, kind, newer = row
    if newer is not None:
        raise UsageError(f"rating {rating.replaces} was replaced already, by {newer}", "replace that one")
    if kind == RatingKind.WITHDRAW.value:
        raise UsageError(f"{rating.replaces} is a withdrawal; nothing replaces it", "rate again instead")
    if trajectory_id not in (rating.trajectory_id, rating.other_id):
        raise UsageError(
            f"rating {rating.replaces} is about trajectory {trajectory_id}, not {rating.trajectory_id}"
        )


def select(
    db: sqlite3.Connection, condition: str, values: tuple[object, ...] = (), *, everything: bool = False
) -> Iterator[Rating]:
    """Oldest first. `everything`: also those that were replaced, and the withdrawals."""
    counts = "TRUE" if everything else COUNTS
    for row in db.execute(f"{_SELECT} WHERE {condition} AND {counts} ORDER BY r.seq", values):
        yield decode(row)


@decoding("a rating")
def decode(row: Mapping[str, Any] | sqlite3.Row) -> Rating:
    return Rating(
        id=row["id"],
        trajectory_id=row["trajectory_id"],
        kind=RatingKind(row["kind"]),
        value=row["value"],
        rater=row["rater"],
        created_at_ms=row["created_at_ms"],
        other_id=row["other_id"],
        step_index=row["step_index"],
        comment=row["comment"],
        elapsed_ms=row["elapsed_ms"],
        replaces=row["replaces"],
        other_step=row["other_step"],
        shown_first=row["shown_first"],
        source=RaterSource(row["source"]),
        labels=tuple(json.loads(row["labels"])),
        queue=row["queue"],
        item=row["item"],
    )


def _sequence(db: sqlite3.Connection, trajectory_id: str) -> int | None:
    row = db.execute("SELECT seq FROM trajectories WHERE id = ?", (trajectory_id,)).fetchone()
    return None if row is None else int(row[0])


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
