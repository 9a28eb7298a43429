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
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from urllib.parse import quote

from hermes.disk.filelock import FileLock
from hermes.errors import StoreError

SAFE_VERSION = (3, 51, 3)
DAMAGE_HINT = (
    "hermes store check shows the damage, hermes store salvage NEW.db rescues what can be read; "
    "a backup may lie beside it (*.bak)"
)
_BUSY_TIMEOUT_S = 30.0
_CACHE_BYTES = 64 << 20
_OPENING_CHECK_S = 0.25


def dbapi() -> ModuleType:
    """The SQLite to use: the standard library's if it is safe, else pysqlite3 if that is installed."""
    if sqlite3.sqlite_version_info >= SAFE_VERSION:
        return sqlite3
    try:
        return importlib.import_module("pysqlite3.dbapi2")
    except ImportError:
        return sqlite3


def errors() -> tuple[type[Exception], ...]:
    """The errors that a connection from here can raise; pysqlite3 has a base class of its own.

    UnicodeDecodeError: a damaged text, of which SQLite cannot even quote what is wrong with it.
    """
    return (dbapi().Error, UnicodeDecodeError, OSError)


def connect_writer(path: Path) -> sqlite3.Connection:
    """A read-write connection to an existing file, in WAL mode; commits reach the disk before they return."""
    connection = _connect(f"file:{quote(str(path))}?mode=rw")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA foreign_keys = ON")
    # A page that is split would keep copies of its rows, which no later deletion finds.
    connection.execute("PRAGMA secure_delete = FAST")
    # The hashes of messages are spread over all of their index.
    connection.execute(f"PRAGMA cache_size = -{_CACHE_BYTES >> 10}")
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


def refuse_damaged(path: Path, patience_s: float = _OPENING_CHECK_S) -> None:
    """StoreError if the file is damaged: what is written to such a store may be lost with it.

    Looks at as many pages as the time allows; `upkeep.maintain.check` looks at all of them.
    """
    if path.stat().st_size == 0:
        raise StoreError(
            f"the database {path} is damaged: it has 0 bytes",
            "restore a backup; if nothing was ever recorded, remove the file",
        )
    with translated_errors(path, "read"):
        connection = connect_reader(path)
        deadline = time.monotonic() + patience_s
        connection.set_progress_handler(lambda: time.monotonic() > deadline, 10_000)
        try:
            problem = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0])
        except dbapi().OperationalError as error:
            if "interrupted" not in str(error):
                raise
            problem = "ok"  # as far as there was time
        finally:
            connection.close()
    if problem != "ok":
        problem = " ".join(problem.split()).removeprefix("*** in database main *** ")
        raise StoreError(f"the database {path} is damaged: {problem}", DAMAGE_HINT)


@contextmanager
def translated_errors(path: Path, verb: str) -> Iterator[None]:
    """Raises StoreError instead of the errors of SQLite and of the disk."""
    try:
        yield
    except errors() as error:
        raise store_error(path, error, verb) from error


def store_error(path: Path, error: Exception, verb: str) -> StoreError:
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    text = " ".join(text.split())[:200]  # of a damaged text SQLite quotes all
    if "full" in text or "No space" in text:
        hint = f"free space on the disk that holds {path.parent}, then run the same command again"
    elif "readonly" in text or "unable to open" in text:
        hint = f"make {path.parent} writable, or set HERMES_HOME to a directory that is"
    elif "locked" in text:
        programs = ", ".join(holders(path)) or "a process that this user cannot see"
        text, hint = f"{text}; it is open in {programs}", "end what holds it, or wait, and run it again"
    elif not isinstance(error, OSError) and (
        verb in ("read", "check")
        or any(
            word in text for word in ("malformed", "not a database", "decode", "disk I/O", "no such table")
        )
    ):
        return StoreError(f"the database {path} is damaged: {text}", DAMAGE_HINT)
    else:
        hint = "run 'hermes doctor'"
    return StoreError(f"cannot {verb} {path}: {text}", hint)


def holders(path: Path) -> list[str]:
    """The other processes that have the file open, as far as this user may see them (Linux)."""
    programs = []
    with suppress(OSError):
        inode = path.stat()
        for process in Path("/proc").iterdir():
            if not process.name.isdigit() or int(process.name) == os.getpid():
                continue
            with suppress(OSError):
                if any(os.path.samestat(entry.stat(), inode) for entry in (process / "fd").iterdir()):
                    programs.append(f"{(process / 'comm').read_text().strip()} ({process.name})")
    return programs


def create_private(path: Path) -> None:
    """Creates the database file 0600, before SQLite can create it with the umask's mode."""
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def remove(path: Path) -> None:
    """The file and those that SQLite and the lock keep beside it, if they exist."""
    for suffix in ("", "-wal", "-shm", "-journal", ".lock"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)


def make_folder(path: Path) -> None:
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"cannot open the database {path}: {error.strerror}",
            "set HERMES_HOME to a directory you can write, or free the disk",
        ) from error
