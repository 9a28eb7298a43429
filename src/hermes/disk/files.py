"""Private files and directories: created with modes 0600 and 0700, replaced whole or not at all.

A reader never sees half a file, and a failed write (full disk, read-only home) leaves the old file unchanged.
Every failure is a `HermesError` that names the path; for files of the Hermes home it is a `ConfigError`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from hermes.disk.filelock import FileLock
from hermes.errors import ConfigError, HermesError


def ensure_dir(path: Path) -> Path:
    """Creates the directory and its missing parents, all private to the user; returns it."""
    try:
        make_private_dirs(path)
    except OSError as error:
        raise _config_error("create the directory", path, error) from error
    return path


def stored_folder(root: Path, *names: str) -> Path:
    """The folder of these names below the root. A ':' is written as '~', which file systems, PATH and rsync
    accept, but for folders of earlier versions, whose names have the ':' itself."""
    for name in names:
        former = root / name
        root = former if former.exists() else root / name.replace(":", "~")
    return root


def make_private_dirs(path: Path) -> None:
    """The same, with the system's error. (`mkdir` with a mode leaves the parents open to everyone.)"""
    missing = [path, *path.parents]
    while missing and missing[-1].is_dir():
        missing.pop()
    for directory in reversed(missing):
        directory.mkdir(mode=0o700, exist_ok=True)


def read_text(path: Path) -> str | None:
    """The file's text; None if there is no such file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _config_error("read", path, error) from error
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8 text", "repair or remove the line") from error


def atomic_write(path: Path, text: str) -> None:
    """Replaces the file by a complete, flushed one with mode 0600. A symlink keeps pointing where it did."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise ConfigError(f"{path}: the new text is not valid Unicode", "remove lone surrogates") from error
    ensure_dir(Path(os.path.realpath(path)).parent)
    try:
        with _replaced_text(path) as file:
            file.write(text)
    except OSError as error:
        raise _config_error("write", path, error) from error


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """A text file that replaces `path`, with mode 0600, when the block ends without an error; else it is
    removed.

    Unlike `atomic_write` it takes text of any length, and it is for files outside the home. Lone surrogates
    are written as `\\udXXX`, which is their form in JSON.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with _replaced_text(path) as file:
            yield file
    except OSError as error:
        hint = "write to another path, or free space and make the directory writable"
        raise HermesError(f"cannot write {path}: {error.strerror or error}", hint) from error


@contextmanager
def _replaced_text(path: Path) -> Iterator[TextIO]:
    from hermes.disk.drafts import draft_file

    target = Path(os.path.realpath(path))
    with draft_file(target) as draft:
        with open(
            draft.handle, "w", encoding="utf-8", errors="backslashreplace", newline="\n", closefd=False
        ) as file:
            yield file
            file.flush()
            os.fsync(draft.handle)
        draft.path.replace(target)
    sync_path(target.parent)


@contextmanager
def settings_lock(home: Path) -> Iterator[None]:
    """Held around a change of the home's settings, so that no other change is lost between read and write."""
    lock = FileLock(ensure_dir(home) / ".config.lock")
    try:
        lock.acquire()
    except OSError as error:
        raise _config_error("write", lock.path, error) from error
    try:
        yield
    finally:
        lock.release()


def sync_path(path: Path) -> None:
    """Flushes a file, or a directory with the renames in it, so that it survives a power failure."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _config_error(verb: str, path: Path, error: OSError) -> ConfigError:
    hint = "point HERMES_HOME at a directory you can write to"
    if isinstance(error, NotADirectoryError | FileExistsError):
        hint = "a file is in the way; point HERMES_HOME at a directory"
    return ConfigError(f"cannot {verb} {path}: {error.strerror or error}", hint)
