"""Rescues what can be read of a damaged store into a new one.

A trajectory comes over whole, with its inputs, rewards and ratings, or not at all: a record with a hole in it
would train a model on something that never happened. Texts are compared with their hashes; a number or a
name that changed into another valid one cannot be told. The damaged file is only read. Not rescued: leases of
rating queues, and the search index, which is made again.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hermes.core import Fact
from hermes.errors import HermesError, StoreError, UsageError
from hermes.store import sqlite
from hermes.store.reader import Reader
from hermes.store.upkeep.maintain import is_changed, require
from hermes.store.writer import Writer

_TABLES = ("metrics", "rating_queues", "rating_items", "rating_skips")
"""The tables whose rows are in no record; parents first."""

_LAST_SEQ = 2**63 - 1
_RANGES_A_PAGE = 50
"""More than a page has rows."""
_MOST_RANGES = 100_000

_CONTEXTS = """
WITH RECURSIVE up (id, parent, message) AS (
    SELECT c.id, c.parent, c.message FROM steps s JOIN contexts c ON c.id = s.context WHERE s.trajectory = ?
    UNION SELECT c.id, c.parent, c.message FROM contexts c JOIN up ON c.id = up.parent)
SELECT up.id, up.parent, m.hash, CAST(m.body AS BLOB) FROM up LEFT JOIN messages m ON m.id = up.message
"""
_TEXTS = """
SELECT m.hash, CAST(m.body AS BLOB) FROM steps s LEFT JOIN messages m ON m.id = s.message
WHERE s.trajectory = ?
UNION SELECT k.hash, CAST(k.body AS BLOB) FROM steps s LEFT JOIN tool_schemas k ON k.id = s.tools
WHERE s.trajectory = ? AND s.tools IS NOT NULL
"""


@dataclass(frozen=True, slots=True)
class Salvage:
    rescued: int
    lost: dict[str, str]
    """Trajectory → why it could not be read."""
    rows: dict[str, int]
    """Table → its rescued rows, of what belongs to no trajectory."""


def salvage(path: Path, target: Path) -> Salvage:
    """UsageError: the target exists. StoreError: not even the list of trajectories can be read."""
    require(path)
    if target.exists():
        raise UsageError(f"{target} exists", "name a file that does not exist yet")
    try:
        return _rescue(path, target)
    except BaseException:
        sqlite.remove(target)
        raise


def _rescue(path: Path, target: Path) -> Salvage:
    rescued: int = 0
    lost: dict[str, str] = {}
    unreadable: tuple[type[Exception], ...] = (HermesError, *sqlite.errors())
    with Reader(path) as reader, Writer(target) as writer, closing(sqlite.connect_reader(path)) as damaged:
        for seq, trajectory_id in _trajectories(damaged):
            try:
                _check_whole(damaged, seq)
                writer.restore(reader.record(reader.get(trajectory_id))).result()
                rescued += 1
            except unreadable as error:
                lost[trajectory_id] = " ".join(str(error).split())
        rows = {table: _copy(damaged, target, table) for table in _TABLES}
        rows["facts"] = _copy_facts(reader, writer)
    return Salvage(rescued, lost, rows)


def _check_whole(connection: sqlite3.Connection, seq: int) -> None:
    """StoreError: a step is missing, or a text does not have the hash that it was stored by."""
    steps = connection.execute(
        "SELECT idx, kind FROM steps WHERE trajectory = ? ORDER BY idx", (seq,)
    ).fetchall()
    if not steps or [index for index, _ in steps] != list(range(len(steps))):
        raise StoreError("a step of it is missing")
    kinds = [kind for _, kind in steps]
    totals = connection.execute(
        "SELECT turns, tool_calls FROM outcomes WHERE trajectory = ?", (seq,)
    ).fetchone()
    if totals is not None and tuple(totals) != (kinds.count("model"), kinds.count("tool")):
        raise StoreError("a step of it is missing")
    nodes = connection.execute(_CONTEXTS, (seq,)).fetchall()
    if not {parent for _, parent, *_ in nodes} <= {0, *(number for number, *_ in nodes)}:
        raise StoreError("a part of what a call saw is missing")
    texts = [(digest, body) for *_, digest, body in nodes]
    texts += connection.execute(_TEXTS, (seq, seq)).fetchall()
    if any(is_changed(digest, body) for digest, body in texts):
        raise StoreError("a text of it has changed")


def _trajectories(connection: sqlite3.Connection) -> list[tuple[int, str]]:
    """Row and id of all that the table or its index still names; oldest first."""
    index = "SELECT seq, id FROM trajectories INDEXED BY sqlite_autoindex_trajectories_1"
    rows = {*_up_to_damage(connection, index)[0], *_rows_of_table(connection)}
    if not rows:
        raise StoreError("no trajectory can be read", "restore a backup")
    return sorted((seq, trajectory_id) for seq, trajectory_id in rows if isinstance(trajectory_id, str))


def _rows_of_table(connection: sqlite3.Connection) -> set[tuple[Any, ...]]:
    """The rows before, behind and between damaged pages.

    A range is read from both ends up to the damage, and what is left is halved, the lower half first: a page
    of another table can seem to hold rows with numbers up to 2^63, and no real one is behind them. That is
    also why the number of ranges is limited.
    """
    pages = connection.execute("PRAGMA page_count").fetchone()[0]
    ranges = [(1, _LAST_SEQ)]
    rows: set[tuple[Any, ...]] = set()
    for _ in range(min(_RANGES_A_PAGE * pages, _MOST_RANGES)):
        if not ranges:
            break
        low, high = ranges.pop()
        query = f"SELECT seq, id FROM trajectories WHERE seq BETWEEN {low} AND {high} ORDER BY seq"
        upwards, is_whole = _up_to_damage(connection, f"{query} ASC")
        rows.update(upwards)
        if is_whole:
            continue
        downwards, _ = _up_to_damage(connection, f"{query} DESC")
        rows.update(downwards)
        low = upwards[-1][0] + 1 if upwards else low
        high = downwards[-1][0] - 1 if downwards else high
        if low < high:
            middle = (low + high) // 2
            ranges += [(middle + 1, high), (low, middle)]
    return rows


def _up_to_damage(connection: sqlite3.Connection, query: str) -> tuple[list[tuple[Any, ...]], bool]:
    """The rows before the first page that cannot be read, and whether there is none."""
    rows: list[tuple[Any, ...]] = []
    try:
        rows.extend(tuple(row) for row in connection.execute(query))
    except sqlite.errors():
        return rows, False
    return rows, True


def _copy(connection: sqlite3.Connection, target: Path, table: str) -> int:
    """Copies the rows that can be read and that the new store takes."""
    count = 0
    with sqlite.write_lock(target), closing(sqlite.connect_writer(target)) as copy:
        for row in _up_to_damage(connection, f"SELECT * FROM {table}")[0]:
            with suppress(*sqlite.errors()):
                marks = ", ".join("?" * len(row))
                count += copy.execute(f"INSERT OR IGNORE INTO {table} VALUES ({marks})", row).rowcount
    return count


def _copy_facts(reader: Reader, writer: Writer) -> int:
    """A fact whose trajectory is lost comes over without it."""
    facts: list[Fact] = []
    with suppress(HermesError, *sqlite.errors()):
        facts = reader.facts()
    for fact in facts:
        try:
            writer.add_fact(fact, len(facts)).result()
        except HermesError:
            alone = replace(fact, trajectory_id=None, step_index=None)
            writer.add_fact(alone, len(facts)).result()
    return len(facts)
