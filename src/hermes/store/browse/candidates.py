"""Which trajectories wait for a rating: drawn at random, a few at a time, however large the store is.

A draw begins at a random place of the store and walks from there, so that it reads a page and not the store.
"""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Collection, Sequence
from typing import NamedTuple

from hermes.core.json import JSON
from hermes.store.browse.columns import SqlCondition
from hermes.store.query import JOINED

_SCANNED = 400
_PAIR_TRIES = 40
_SIBLINGS = 16
_UNRATED = (
    "NOT EXISTS (SELECT 1 FROM ratings r WHERE r.trajectory = t.seq AND r.rater = ? AND r.kind IN ({kinds})"
    " AND NOT EXISTS (SELECT 1 FROM ratings n WHERE n.replaces = r.id AND n.replaces IS NOT NULL))"
)


class CandidateRow(NamedTuple):
    seq: int
    id: str
    run_id: str | None
    task_id: str | None
    parent_id: str | None


class CandidatePair(NamedTuple):
    first: str
    second: str


def draw(
    db: sqlite3.Connection,
    conditions: Sequence[SqlCondition],
    rater: str,
    kinds: Collection[str],
    besides: Collection[str],
    seed: int,
) -> CandidateRow | None:
    """A finished trajectory that has an answer and that the rater has not rated in this way."""
    return next(iter(_walk(db, conditions, rater, kinds, besides, seed, 1)), None)


def draw_pair(
    db: sqlite3.Connection,
    conditions: Sequence[SqlCondition],
    rater: str,
    besides: Collection[str],
    seed: int,
) -> CandidatePair | None:
    """Two attempts at one task that the rater has not compared yet, in no particular order."""
    chance = random.Random(seed)
    for row in _walk(db, conditions, rater, (), (), seed, _PAIR_TRIES):
        siblings = _siblings(db, row)
        chance.shuffle(siblings)
        for sibling in siblings:
            if "|".join(sorted((row.id, sibling))) in besides or _compared(db, row.id, sibling, rater):
                continue
            pair = [row.id, sibling]
            chance.shuffle(pair)
            return CandidatePair(*pair)
    return None


def _walk(
    db: sqlite3.Connection,
    conditions: Sequence[SqlCondition],
    rater: str,
    kinds: Collection[str],
    besides: Collection[str],
    seed: int,
    limit: int,
) -> list[CandidateRow]:
    last = db.execute("SELECT max(seq) FROM trajectories").fetchone()[0]
    if last is None:
        return []
    chance = random.Random(seed)
    starts = [chance.randint(1, last) for _ in range(3)]
    rows: list[CandidateRow] = []
    for start in (*starts, 0):
        # The last walk, from the beginning, finds what is left when little is.
        bound = start + _SCANNED if start else last + 1
        for row in _scan(db, conditions, rater, kinds, start, bound, limit + len(besides)):
            if row.id not in besides and row not in rows:
                rows.append(row)
        if len(rows) >= limit:
            break
    chance.shuffle(rows)
    return rows[:limit]


def _scan(
    db: sqlite3.Connection,
    conditions: Sequence[SqlCondition],
    rater: str,
    kinds: Collection[str],
    start: int,
    bound: int,
    limit: int,
) -> list[CandidateRow]:
    clauses = ["t.seq >= ?", "t.seq < ?", "o.turns > 0", "coalesce(t.relation, '') != 'compressed'"]
    values: list[JSON] = [start, bound]
    if kinds:
        clauses.append(_UNRATED.format(kinds=", ".join("?" * len(kinds))))
        values += [rater, *kinds]
    for condition in conditions:
        clauses.append(f"({condition.clause})")
        values += condition.values
    rows = db.execute(
        f"SELECT t.seq, t.id, t.run_id, t.task_id, t.parent_id {JOINED} WHERE {' AND '.join(clauses)}"
        " ORDER BY t.seq LIMIT ?",
        [*values, limit],
    )
    return [CandidateRow(*row) for row in rows]


def _siblings(db: sqlite3.Connection, row: CandidateRow) -> list[str]:
    """Attempts at the same task: of the same run, retries, or with the same first message of the user."""
    answered = "JOIN outcomes o ON o.trajectory = t.seq WHERE o.turns > 0 AND t.seq != ?"
    if row.run_id is not None and row.task_id is not None:
        same_task = f"SELECT t.id FROM trajectories t {answered} AND t.run_id = ? AND t.task_id = ? LIMIT ?"
        return [r[0] for r in db.execute(same_task, (row.seq, row.run_id, row.task_id, _SIBLINGS))]
    question = db.execute(
        "SELECT s.message FROM steps s JOIN messages m ON m.id = s.message WHERE s.trajectory = ?"
        " AND NOT s.ephemeral AND m.role = 'user' ORDER BY s.idx LIMIT 1",
        (row.seq,),
    ).fetchone()
    if question is None:
        return []
    same_question = (
        "SELECT DISTINCT t.id FROM"
        " (SELECT trajectory FROM steps WHERE message = ? ORDER BY id DESC LIMIT 200) s"
        f" JOIN trajectories t ON t.seq = s.trajectory {answered}"
        " AND coalesce(t.relation, '') != 'compressed' LIMIT ?"
    )
    return [r[0] for r in db.execute(same_question, (question[0], row.seq, _SIBLINGS))]


def _compared(db: sqlite3.Connection, first: str, second: str, rater: str) -> bool:
    query = (
        "SELECT 1 FROM ratings r JOIN trajectories t ON t.seq = r.trajectory"
        " WHERE t.id = ? AND r.other_id = ? AND r.rater = ? AND r.kind IN ('pair', 'both_bad')"
        " AND NOT EXISTS (SELECT 1 FROM ratings n WHERE n.replaces = r.id AND n.replaces IS NOT NULL)"
    )
    return any(db.execute(query, (*ids, rater)).fetchone() for ids in ((first, second), (second, first)))
