"""Rating queues: an ordered list of items, and who has which item before them.

An item is leased to one rater at a time; a lease ends with the rating, with a skip, or when its time is over.
An item is finished when enough raters have rated it. Leases and skips are bookkeeping: they can be removed,
and losing them loses no rating.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from hermes.core import canonical_json, content_hash
from hermes.errors import UsageError
from hermes.store.rating.events import COUNTS

_HASH_DIGITS = 12


class ItemRow(NamedTuple):
    """One thing to rate: a trajectory, or two."""

    item: str
    """Equal for equal things: `item_key`."""
    trajectory_id: str
    other_id: str | None
    why: str
    """Why the rule put it here."""


@dataclass(frozen=True, slots=True)
class TakeRequest:
    """A rater asks for the next item."""

    queue: str
    rater: str
    now_ms: int
    lease_ms: int
    raters_per_item: int = 1
    repeat_share: float = 0.0
    """Share of items that a rater gets a second time."""
    repeat_gap: int = 10
    """Least number of other items between an item and its repeat."""
    seed: int = 0
    besides: tuple[str, ...] = ()
    """Items that the rater has before them already and wants to keep: the next one is another."""


@dataclass(frozen=True, slots=True)
class TakenItem:
    row: ItemRow
    until_ms: int
    repeat: bool
    turn: int
    """Number of ratings that the rater has given in this queue; a seed for what may differ each time."""


class QueueCounts(NamedTuple):
    items: int
    finished: int
    leased: int
    ratings: int


def item_key(trajectory_id: str, other_id: str | None = None) -> str:
    """The same for both orders of a pair."""
    if other_id is None:
        return trajectory_id
    return "|".join(sorted((trajectory_id, other_id)))


def create(db: sqlite3.Connection, name: str, settings: str, now_ms: int) -> None:
    """UsageError if a queue of this name has other settings."""
    row = db.execute("SELECT settings FROM rating_queues WHERE name = ?", (name,)).fetchone()
    if row is None:
        db.execute(
            "INSERT INTO rating_queues (name, settings, created_at_ms, first_open) VALUES (?, ?, ?, 0)",
            (name, settings, now_ms),
        )
    elif row[0] != settings:
        raise UsageError(f"the queue '{name}' exists with other settings", "give the new one another name")


def settings_of(db: sqlite3.Connection, name: str) -> str:
    row = db.execute("SELECT settings FROM rating_queues WHERE name = ?", (name,)).fetchone()
    if row is None:
        raise UsageError(f"there is no queue '{name}'", "see 'hermes rate queue --list'")
    return str(row[0])


def delete(db: sqlite3.Connection, name: str) -> None:
    """Deletes the queue with its items, leases and skips; the ratings that were given in it stay."""
    settings_of(db, name)
    for table in ("rating_leases", "rating_skips", "rating_items"):
        db.execute(f"DELETE FROM {table} WHERE queue = ?", (name,))
    db.execute("DELETE FROM rating_queues WHERE name = ?", (name,))


def names(db: sqlite3.Connection) -> list[str]:
    return [row[0] for row in db.execute("SELECT name FROM rating_queues ORDER BY created_at_ms, name")]


def add_items(db: sqlite3.Connection, name: str, items: Sequence[ItemRow]) -> int:
    """Appends those that are not in the queue yet; the number of them."""
    settings_of(db, name)
    last = db.execute("SELECT max(position) FROM rating_items WHERE queue = ?", (name,)).fetchone()[0]
    position, added = (-1 if last is None else int(last)) + 1, 0
    for row in items:
        added += db.execute(
            "INSERT OR IGNORE INTO rating_items (queue, position, item, trajectory_id, other_id, why)"
            " VALUES (?, ?, ?, ?, ?, ?)",
            (name, position + added, *row),
        ).rowcount
    return added


def take(db: sqlite3.Connection, request: TakeRequest) -> TakenItem | None:
    """Leases the next item to the rater; None if nothing is left for them."""
    settings_of(db, request.queue)
    db.execute("DELETE FROM rating_leases WHERE until_ms <= ?", (request.now_ms,))
    turn = db.execute(
        f"SELECT count(*) FROM ratings r WHERE r.queue = ? AND r.rater = ? AND {COUNTS}",
        (request.queue, request.rater),
    ).fetchone()[0]
    row, repeat = _own_lease(db, request), False
    if row is None and _draw(request, turn) < request.repeat_share:
        row = _repeat(db, request)
        repeat = row is not None
    row = row or _next_item(db, request)
    if row is None:
        return None
    until_ms = request.now_ms + request.lease_ms
    db.execute(
        "INSERT INTO rating_leases (queue, item, rater, until_ms) VALUES (?, ?, ?, ?)"
        " ON CONFLICT (queue, item) DO UPDATE SET until_ms = excluded.until_ms",
        (request.queue, row.item, request.rater, until_ms),
    )
    return TakenItem(row, until_ms, repeat or _rated_by(db, request, row.item), turn)


def release(db: sqlite3.Connection, queue: str, item: str, rater: str) -> None:
    """The rater's lease ends; nothing happens if there is none."""
    db.execute("DELETE FROM rating_leases WHERE queue = ? AND item = ? AND rater = ?", (queue, item, rater))


def skip(db: sqlite3.Connection, queue: str, item: str, rater: str, now_ms: int) -> None:
    """The rater does not get the item again."""
    release(db, queue, item, rater)
    db.execute(
        "INSERT OR IGNORE INTO rating_skips (queue, item, rater, at_ms) VALUES (?, ?, ?, ?)",
        (queue, item, rater, now_ms),
    )


def reopen(db: sqlite3.Connection, queue: str, item: str) -> None:
    """After a withdrawal: the item may be open again."""
    db.execute(
        "UPDATE rating_queues SET first_open = min(first_open, coalesce("
        " (SELECT position FROM rating_items WHERE queue = ?1 AND item = ?2), first_open)) WHERE name = ?1",
        (queue, item),
    )


def counts(db: sqlite3.Connection, queue: str, raters_per_item: int, now_ms: int) -> QueueCounts:
    finished = (
        "SELECT count(*) FROM (SELECT r.item FROM ratings r WHERE r.queue = ? AND r.item IS NOT NULL"
        f" AND {COUNTS} GROUP BY r.item HAVING count(DISTINCT r.rater) >= ?)"
    )
    return QueueCounts(
        _number(db, "SELECT count(*) FROM rating_items WHERE queue = ?", queue),
        _number(db, finished, queue, raters_per_item),
        _number(db, "SELECT count(*) FROM rating_leases WHERE queue = ? AND until_ms > ?", queue, now_ms),
        _number(db, f"SELECT count(*) FROM ratings r WHERE r.queue = ? AND {COUNTS}", queue),
    )


def raters(db: sqlite3.Connection, queue: str) -> dict[str, int]:
    rows = db.execute(
        f"SELECT r.rater, count(*) FROM ratings r WHERE r.queue = ? AND {COUNTS}"
        " GROUP BY 1 ORDER BY 2 DESC, 1",
        (queue,),
    )
    return dict(rows.fetchall())


def _number(db: sqlite3.Connection, query: str, *values: object) -> int:
    return int(db.execute(query, values).fetchone()[0])


_ITEM = "SELECT i.item, i.trajectory_id, i.other_id, i.why FROM rating_items i"
_RATERS = (
    "(SELECT count(DISTINCT r.rater) FROM ratings r"
    f" WHERE r.queue = i.queue AND r.item = i.item AND {COUNTS})"
)


def _own_lease(db: sqlite3.Connection, request: TakeRequest) -> ItemRow | None:
    """A page that is loaded again shows the same item."""
    row = db.execute(
        f"{_ITEM} JOIN rating_leases l ON l.queue = i.queue AND l.item = i.item"
        " WHERE i.queue = ? AND l.rater = ? AND i.item NOT IN (SELECT value FROM json_each(?))"
        " ORDER BY i.position LIMIT 1",
        (request.queue, request.rater, canonical_json(list(request.besides))),
    ).fetchone()
    return None if row is None else ItemRow(*row)


def _repeat(db: sqlite3.Connection, request: TakeRequest) -> ItemRow | None:
    """The rater's oldest item that they rated once, enough other items ago."""
    row = db.execute(
        f"{_ITEM} JOIN (SELECT r.item, max(r.seq) AS at, count(*) AS times FROM ratings r"
        f" WHERE r.queue = ?1 AND r.rater = ?2 AND {COUNTS} GROUP BY r.item) m ON m.item = i.item"
        " WHERE i.queue = ?1 AND m.times = 1"
        " AND NOT EXISTS (SELECT 1 FROM rating_leases l WHERE l.queue = i.queue AND l.item = i.item)"
        f" AND (SELECT count(*) FROM ratings r WHERE r.queue = ?1 AND r.rater = ?2 AND r.seq > m.at"
        f" AND {COUNTS}) >= ?3 ORDER BY m.at LIMIT 1",
        (request.queue, request.rater, request.repeat_gap),
    ).fetchone()
    return None if row is None else ItemRow(*row)


def _next_item(db: sqlite3.Connection, request: TakeRequest) -> ItemRow | None:
    first_open = db.execute(
        "SELECT coalesce((SELECT min(i.position) FROM rating_items i JOIN rating_queues q ON q.name = i.queue"
        f" WHERE i.queue = ? AND i.position >= q.first_open AND {_RATERS} < ?), -1)",
        (request.queue, request.raters_per_item),
    ).fetchone()[0]
    if first_open < 0:
        return None
    db.execute("UPDATE rating_queues SET first_open = ? WHERE name = ?", (first_open, request.queue))
    row = db.execute(
        f"{_ITEM} WHERE i.queue = ?1 AND i.position >= ?2 AND {_RATERS} < ?3"
        " AND NOT EXISTS (SELECT 1 FROM rating_leases l WHERE l.queue = i.queue AND l.item = i.item)"
        " AND NOT EXISTS (SELECT 1 FROM rating_skips s"
        "  WHERE s.queue = i.queue AND s.item = i.item AND s.rater = ?4)"
        f" AND NOT EXISTS (SELECT 1 FROM ratings r"
        f"  WHERE r.queue = i.queue AND r.item = i.item AND r.rater = ?4 AND {COUNTS})"
        " ORDER BY i.position LIMIT 1",
        (request.queue, first_open, request.raters_per_item, request.rater),
    ).fetchone()
    return None if row is None else ItemRow(*row)


def _rated_by(db: sqlite3.Connection, request: TakeRequest, item: str) -> bool:
    row = db.execute(
        f"SELECT 1 FROM ratings r WHERE r.queue = ? AND r.item = ? AND r.rater = ? AND {COUNTS}",
        (request.queue, item, request.rater),
    ).fetchone()
    return row is not None


def _draw(request: TakeRequest, turn: int) -> float:
    """A number in 0…1 that depends on the seed, the rater and the turn only."""
    digest = content_hash(canonical_json([request.seed, request.queue, request.rater, turn]))
    return int(digest[-_HASH_DIGITS:], 16) / float(16**_HASH_DIGITS)
