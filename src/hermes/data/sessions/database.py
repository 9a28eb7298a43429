"""A client's SQLite file, read without writing to it; columns that its version lacks read as null."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hermes.core import JSONObject
from hermes.data.sessions.base import Notes
from hermes.errors import UsageError
from hermes.safety.paths import resolve_inside
from hermes.store import sqlite


class SessionDatabase:
    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        connection.row_factory = sqlite.dbapi().Row

    def tables(self) -> frozenset[str]:
        rows = self._connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')")
        return frozenset(row[0] for row in rows)

    def rows(self, query: str, *values: str | int) -> Iterator[JSONObject]:
        return (
            {
                name: value.decode("utf-8", "replace") if isinstance(value, bytes) else value
                for name, value in zip(row.keys(), row, strict=True)
            }
            for row in self._connection.execute(query, values)
        )

    def row(self, table: str, rowid: int) -> JSONObject:
        """KeyError: it is gone."""
        for row in self.rows(f"SELECT * FROM {table} WHERE rowid = ?", rowid):
            return row
        raise KeyError(f"row {rowid} of {table}")


@contextmanager
def opened(root: Path, path: Path, notes: Notes) -> Iterator[SessionDatabase]:
    """UsageError: it is no database. Damage that is met while it is read is a problem, and the end of it."""
    try:
        real = resolve_inside(root, str(path.relative_to(root)))
    except OSError as error:
        raise UsageError(
            f"cannot read {path}: {error.strerror or error}", "name a file you can read"
        ) from error
    if not real.is_file() or not os.access(real, os.R_OK):
        raise UsageError(f"{path} is not a file that can be read", "name a database file")
    try:
        connection = sqlite.connect_reader(real)
    except sqlite.errors() as error:
        raise UsageError(f"cannot open {path}: {error}", "is it a SQLite file?") from error
    try:
        yield SessionDatabase(connection)
    except sqlite.errors() as error:
        notes.problem(0, f"the database cannot be read on: {error}")
    finally:
        connection.close()


def parsed(text: object) -> JSONObject:
    """ValueError: it is not a JSON object."""
    value = json.loads(str(text))
    if not isinstance(value, dict):
        raise ValueError(f"a JSON {type(value).__name__}, not an object")
    return value
