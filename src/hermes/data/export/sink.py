"""Where rows go: JSONL, Parquet or Arrow by the file's ending, or a folder with one file a conversation.

Each target appears whole, or not at all: it is written beside its place, flushed to disk and renamed. A
failure, a full disk or kill -9 leaves what was there before. What a killed export left half-written is
removed by the next one to the same place.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from hermes.core import JSONObject
from hermes.core.drafts import draft_file, draft_folder, sweep
from hermes.core.files import sync_directory
from hermes.data.export.table import TableWriter
from hermes.data.formats.base import Format
from hermes.data.lines import encoded, exact
from hermes.errors import HermesError, UsageError

TABLES = {".parquet": False, ".arrow": True}
"""Ending → whether it is an Arrow stream."""
LINES = (".jsonl", ".ndjson", ".json")


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that is in its place."""

    path: Path
    rows: int
    bytes: int
    sha256: str
    """Of a folder: over its files' names and hashes, in order of name."""


class RowSink(Protocol):
    """Takes rows; `written` is set once the target is in its place."""

    written: WrittenFile | None

    def add(self, row: JSONObject) -> None: ...


def check_target(path: Path, form: Format) -> None:
    """Refuses a target whose kind cannot be told, or does not fit the format."""
    known = (*LINES, *TABLES)
    if path.suffix in known:
        if path.is_dir():
            raise UsageError(f"{path} is a folder", "name a file, or a folder without such an ending")
        return
    if form.lines is None:
        raise UsageError(
            f"'{path.name}' does not say which kind of file to write", f"end it in {', '.join(known)}"
        )


@contextmanager
def open_sink(path: Path, form: Format) -> Iterator[RowSink]:
    """The sink for this target; the target changes only if the block ends well."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path)
        if path.suffix in (*LINES, *TABLES):
            with _file_sink(path, form) as sink:
                yield sink
        else:
            with _folder_sink(path, form) as folder:
                yield folder
    except OSError as error:
        raise HermesError(
            f"cannot write {path}: {error.strerror or error}",
            "write to another place, or free space and make the directory writable",
        ) from error


@contextmanager
def _file_sink(path: Path, form: Format) -> Iterator[RowSink]:
    target = Path(os.path.realpath(path))
    with draft_file(target) as draft:
        with os.fdopen(draft.handle, "wb", closefd=False) as file:
            arrow = TABLES.get(path.suffix)
            sink = _LineSink(file, form) if arrow is None else _TableSink(file, form, arrow)
            try:
                yield sink
                sink.finish()
            except BaseException:
                sink.abandon()
                raise
            file.flush()
            os.fsync(draft.handle)
        written = WrittenFile(path, sink.rows, draft.path.stat().st_size, file_digest(draft.path))
        draft.path.replace(target)
    sync_directory(target.parent)
    sink.written = written


class _LineSink:
    def __init__(self, file: BinaryIO, form: Format) -> None:
        self._file = file
        self._exact = form.whole
        self.rows = 0
        self.written: WrittenFile | None = None

    def add(self, row: JSONObject) -> None:
        line = exact(row) if self._exact else encoded(row)[1]
        self._file.write(line.encode("utf-8") + b"\n")
        self.rows += 1

    def finish(self) -> None:
        """Nothing waits."""

    def abandon(self) -> None:
        """Nothing to take back."""


class _TableSink:
    def __init__(self, file: BinaryIO, form: Format, arrow: bool) -> None:
        self._table = TableWriter(file, form.columns, arrow=arrow)
        self._exact = form.whole
        self.rows = 0
        self.written: WrittenFile | None = None

    def add(self, row: JSONObject) -> None:
        clean, text = (row, exact(row)) if self._exact else encoded(row)
        self._table.add(clean, len(text))
        self.rows += 1

    def finish(self) -> None:
        self._table.close()

    def abandon(self) -> None:
        self._table.abandon()


@contextmanager
def _folder_sink(path: Path, form: Format) -> Iterator[RowSink]:
    assert form.lines is not None
    target = Path(os.path.realpath(path))
    with draft_folder(target) as draft:
        sink = _FolderSink(draft.path, form)
        yield sink
        sync_directory(draft.path)
        digest, size = _folder_digest(draft.path)
        _take_place(draft.path, target)
    sync_directory(target.parent)
    sink.written = WrittenFile(path, sink.rows, size, digest)


def _take_place(folder: Path, target: Path) -> None:
    """A folder cannot replace another: for a moment there is none, better than one of two exports."""
    while True:
        try:
            folder.rename(target)
            return
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        with draft_folder(target) as old, suppress(FileNotFoundError):  # another export has moved it away
            target.rename(old.path / "old")


class _FolderSink:
    def __init__(self, folder: Path, form: Format) -> None:
        self._folder = folder
        self._form = form
        self.rows = 0
        self.written: WrittenFile | None = None

    def add(self, row: JSONObject) -> None:
        assert self._form.lines is not None
        path = self._folder / f"{row['id']}.jsonl"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for line in self._form.lines(row):
                file.write(encoded(line)[1].encode("utf-8") + b"\n")
            file.flush()
            os.fsync(file.fileno())
        self.rows += 1


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _folder_digest(folder: Path) -> tuple[str, int]:
    whole = hashlib.sha256()
    size = 0
    for path in sorted(folder.iterdir()):
        whole.update(f"{path.name} {file_digest(path)}\n".encode())
        size += path.stat().st_size
    return whole.hexdigest(), size
