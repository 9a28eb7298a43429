"""Upkeep of the database: check it, return its free space, copy it while it is used."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from hermes.config.doctor.check import Check, CheckStatus
from hermes.core import content_hash
from hermes.errors import HermesError, UsageError
from hermes.store import migrations, sqlite

_PROBLEMS_SHOWN = 20
_DOCTOR_S = 3.0


@dataclass(frozen=True, slots=True)
class StoreCheck:
    schema: int
    size_bytes: int
    free_bytes: int
    """Space that deleted rows left; `compact` returns it."""
    trajectories: int
    problems: tuple[str, ...]
    """The problems that SQLite and the references between tables report; empty if all is well."""


def check(path: Path) -> StoreCheck:
    """Reads every page, every reference, and every message against its hash. Nothing is changed.

    StoreError: it is so damaged that it cannot be opened.
    """
    require(path)
    with sqlite.translated_errors(path, "check"):
        connection = sqlite.connect_reader(path)
        try:
            problems = [
                str(row[0]) for row in connection.execute(f"PRAGMA integrity_check({_PROBLEMS_SHOWN})")
            ]
            dangling = connection.execute("PRAGMA foreign_key_check").fetchmany(_PROBLEMS_SHOWN)
            problems += [f"row {row[1]} of {row[0]} refers to a missing row of {row[2]}" for row in dangling]
            problems += islice(_changed_content(connection), _PROBLEMS_SHOWN)
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
    require(path)
    before = path.stat().st_size
    with sqlite.translated_errors(path, "compact"), sqlite.write_lock(path):
        connection = sqlite.connect_writer(path)
        try:
            connection.execute("VACUUM")
            connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        finally:
            connection.close()
    return before - path.stat().st_size


def backup(path: Path, target: Path) -> int:
    """Writes a consistent copy, readable by this user only; its size. An existing file is an error."""
    require(path)
    if target.exists():
        raise UsageError(f"{target} exists", "name a file that does not exist yet")
    with sqlite.translated_errors(target, "write"):
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


def require(path: Path) -> None:
    if not path.exists():
        raise UsageError(f"there is no database {path} yet", "hermes -q 'What is 17 * 23?' makes it")


def doctor_check(path: Path) -> Check:
    """The finding of `hermes doctor` about the store; a large one is not read to its end."""
    if not path.exists():
        return Check("store", CheckStatus.OK, f"{path} (made when first needed)")
    try:
        sqlite.refuse_damaged(path, _DOCTOR_S)
    except HermesError as error:
        return Check("store", CheckStatus.FAIL, error.message, "the record of every run", error.hint)
    return Check("store", CheckStatus.OK, f"{path}, no damage seen")


def is_changed(digest: str | None, body: bytes | None) -> bool:
    """Whether a text does not have the hash that it was stored by."""
    return content_hash(bytes(body or b"").decode("utf-8", "replace")) != digest


def _changed_content(connection: sqlite3.Connection) -> Iterator[str]:
    for table in ("messages", "tool_schemas"):
        query = f"SELECT id, hash, CAST(body AS BLOB) FROM {table} ORDER BY id"
        for number, digest, body in connection.execute(query):
            if is_changed(digest, body):
                yield f"the text of row {number} of {table} has changed"


def _number(connection: sqlite3.Connection, statement: str) -> int:
    return int(connection.execute(statement).fetchone()[0])
