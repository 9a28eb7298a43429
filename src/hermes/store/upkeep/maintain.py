"""Upkeep of the database: check it, return its free space, copy it while it is used."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hermes.errors import StoreError, UsageError
from hermes.store import migrations, sqlite

_PROBLEMS_SHOWN = 20


@dataclass(frozen=True, slots=True)
class StoreCheck:
    schema: int
    size_bytes: int
    free_bytes: int
    """Of deleted rows; `compact` returns it."""
    trajectories: int
    problems: tuple[str, ...]
    """What SQLite and the references between tables report; empty if all is well."""


def check(path: Path) -> StoreCheck:
    """Reads every page and every reference. Nothing is changed."""
    _require(path)
    with _errors(path, "check"):
        connection = sqlite.connect_reader(path)
        try:
            problems = [
                str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({_PROBLEMS_SHOWN})")
            ]
            dangling = connection.execute("PRAGMA foreign_key_check").fetchmany(_PROBLEMS_SHOWN)
            problems += [f"row {row[1]} of {row[0]} refers to a missing row of {row[2]}" for row in dangling]
            page_bytes = _number(connection, "PRAGMA page_size")
            return StoreCheck(
                schema=migrations.version(connection),
                size_bytes=page_bytes * _number(connection, "PRAGMA page_count"),
                free_bytes=page_bytes * _number(connection, "PRAGMA freelist_count"),
                trajectories=_number(connection, "SELECT count(*) FROM trajectories"),
                problems=tuple(problem for problem in problems if problem != "ok"),
            )
        finally:
            connection.close()


def compact(path: Path) -> int:
    """Rewrites the database without its free space; the number of bytes that were returned."""
    _require(path)
    before = path.stat().st_size
    with _errors(path, "compact"), sqlite.write_lock(path):
        connection = sqlite.connect_writer(path)
        try:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            connection.close()
    return before - path.stat().st_size


def backup(path: Path, target: Path) -> int:
    """Writes a consistent copy, readable by this user only; its size. An existing file is an error."""
    _require(path)
    if target.exists():
        raise UsageError(f"{target} exists", "name a file that does not exist yet")
    with _errors(target, "write"):
        os.close(os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600))
        connection = sqlite.connect_reader(path)
        copy: sqlite3.Connection = sqlite.dbapi().connect(str(target))
        try:
            connection.backup(copy)
        except BaseException:
            target.unlink(missing_ok=True)
            raise
        finally:
            copy.close()
            connection.close()
    return target.stat().st_size


def _require(path: Path) -> None:
    if not path.exists():
        raise UsageError(f"there is no database {path} yet", "hermes -q 'What is 17 * 23?' makes it")


def _number(connection: sqlite3.Connection, statement: str) -> int:
    return int(connection.execute(statement).fetchone()[0])


@contextmanager
def _errors(path: Path, verb: str) -> Iterator[None]:
    try:
        yield
    except sqlite.errors() as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise StoreError(
            f"cannot {verb} {path}: {reason}", "check the disk; 'hermes store backup' makes a copy first"
        ) from error
