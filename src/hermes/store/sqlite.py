"""Which SQLite this process uses, and how its connections are set up.

SQLite up to 3.51.2 can corrupt a WAL database when two connections write or checkpoint at the same
moment. Two defences: the `pysqlite3` package (which bundles a newer library) is preferred when the
standard library's is older, and every write of ours, checkpoints and closing included, happens
under an exclusive lock on `<database>.lock` (see `write_lock`), so there is one writer at a time on
this machine whatever the version.
"""

from __future__ import annotations

import importlib
import os
import sqlite3
from pathlib import Path
from types import ModuleType
from urllib.parse import quote

from hermes.disk.filelock import FileLock
from hermes.errors import StoreError

SAFE_VERSION = (3, 51, 3)
_BUSY_TIMEOUT_S = 30.0


def dbapi() -> ModuleType:
    """The SQLite to use: the standard library's if it is safe, else pysqlite3 if that is installed."""
    if sqlite3.sqlite_version_info >= SAFE_VERSION:
        return sqlite3
    try:
        return importlib.import_module("pysqlite3.dbapi2")
    except ImportError:
        return sqlite3


def errors() -> tuple[type[Exception], ...]:
    """What using a connection from here can raise; pysqlite3 has a base class of its own."""
    return (dbapi().Error, OSError)


def connect_writer(path: Path) -> sqlite3.Connection:
    """A read-write connection to an existing file, in WAL mode; commits reach the disk before they return."""
    connection = _connect(f"file:{quote(str(path))}?mode=rw")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    return connection


def connect_reader(path: Path) -> sqlite3.Connection:
    """A connection that cannot write."""
    connection = _connect(f"file:{quote(str(path))}?mode=ro")
    connection.execute("PRAGMA query_only = ON")
    return connection


def connect_memory() -> sqlite3.Connection:
    """An empty private database, for readers of a store that does not exist yet."""
    return _connect(":memory:")


def write_lock(path: Path) -> FileLock:
    """The lock that is held around every write transaction: one writer on this machine at a time."""
    return FileLock(path.with_name(f"{path.name}.lock"))


def _connect(address: str) -> sqlite3.Connection:
    # Transactions are explicit (isolation_level=None); the writer thread is the only user of its
    # connection, but not the thread that opened it.
    connection: sqlite3.Connection = dbapi().connect(
        address, uri=True, isolation_level=None, check_same_thread=False, timeout=_BUSY_TIMEOUT_S
    )
    return connection


def create_private(path: Path) -> None:
    """Creates the database file 0600, before SQLite can create it with the umask's mode."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
    except OSError as error:
        raise StoreError(
            f"cannot open the database {path}: {error.strerror}",
            "set HERMES_HOME to a directory you can write, or free the disk",
        ) from error
