"""The dataset writer of exports and batch runs: JSONL, Parquet or Arrow by the file's ending, a folder with
one file per conversation, or a folder of Parquet shards.

Each target appears whole or not at all: it is written beside its path, flushed to disk and renamed. A
failure, a full disk or kill -9 leaves what was there before. What a killed process left half-written is
removed by the next one that writes to the same path. The same rows give the same bytes.
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
from hermes.data.export.table import GROUP_BYTES, TableWriter
from hermes.data.formats.base import Format
from hermes.data.lines import EncodedRow, encode_row, exact_line
from hermes.disk.drafts import draft_file, draft_folder, sweep
from hermes.disk.files import sync_path
from hermes.errors import HermesError, UsageError

TABLES = {".parquet": False, ".arrow": True}
"""Ending → whether it is an Arrow stream."""
LINES = (".jsonl", ".ndjson", ".json")
SHARD_BYTES = 256 << 20
"""Size on disk at which a shard is closed."""


@dataclass(frozen=True, slots=True)
class WrittenFile:
    """A file that was renamed to its path."""

    path: Path
    rows: int
    bytes: int
    sha256: str
    """For a folder, the hash over its files' names and hashes, in order of name."""


class RowSink(Protocol):
    """Takes rows; `written` is set once the target is complete."""

    written: WrittenFile | None

    def add(self, encoded: EncodedRow) -> None: ...


def encode(row: JSONObject, form: Format) -> EncodedRow:
    """The row as the sinks of this format take it."""
    return EncodedRow(row, exact_line(row)) if form.whole else encode_row(row)


def check_target(path: Path, form: Format) -> None:
    """Raises UsageError for a target whose ending is unknown or does not fit the format."""
    endings = (*LINES, *TABLES)
    if path.suffix in endings:
        if path.is_dir():
            raise UsageError(f"{path} is a folder", "name a file, or a folder without such an ending")
        return
    if form.lines is None:
        raise UsageError(
            f"'{path.name}' does not say which kind of file to write", f"end it in {', '.join(endings)}"
        )


@contextmanager
def open_sink(path: Path, form: Format) -> Iterator[RowSink]:
    """The sink for this target; the target changes only if the block ends without an error."""
    with _prepared(path):
        if path.suffix in (*LINES, *TABLES):
            with _file_sink(path, form) as sink:
                yield sink
        else:
            with _folder_sink(path, form) as folder:
                yield folder


@contextmanager
def open_shards(
    path: Path, form: Format, *, shard_bytes: int = SHARD_BYTES, group_bytes: int = GROUP_BYTES
) -> Iterator[RowSink]:
    """A folder of Parquet files for a dataset of any size; it changes only if the block ends without an
    error."""
    target = Path(os.path.realpath(path))
    with _prepared(path):
        with draft_folder(target) as draft:
            sink = _ShardSink(draft.path, form, shard_bytes, group_bytes)
            try:
                yield sink
                sink.finish()
            except BaseException:
                sink.abandon()
                raise
            sync_path(draft.path)
            digest, size = _folder_digest(draft.path)
            _replace_folder(draft.path, target)
        sync_path(target.parent)
        sink.written = WrittenFile(path, sink.rows, size, digest)


@contextmanager
def _prepared(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        sweep(path)
        yield
    except OSError as error:
        raise HermesError(
            f"cannot write {path}: {error.strerror or error}",
            "write to another path, or free space and make the directory writable",
        ) from error


@contextmanager
def _file_sink(path: Path, form: Format) -> Iterator[RowSink]:
    target = Path(os.path.realpath(path))
    with draft_file(target) as draft:
        with os.fdopen(draft.handle, "wb", closefd=False) as file:
            arrow = TABLES.get(path.suffix)
            sink = _LineSink(file) if arrow is None else _TableSink(file, form, arrow=arrow)
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
    sync_path(target.parent)
    sink.written = written


class _LineSink:
    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.rows = 0
        self.written: WrittenFile | None = None

    def add(self, encoded: EncodedRow) -> None:
        self._file.write(encoded.line.encode("utf-8") + b"\n")
        self.rows += 1

    def finish(self) -> None:
        """There is nothing to flush."""

    def abandon(self) -> None:
        """There is nothing to discard."""


class _TableSink:
    def __init__(
        self, file: BinaryIO, form: Format, *, arrow: bool = False, group_bytes: int = GROUP_BYTES
    ) -> None:
        self._table = TableWriter(file, form.columns, arrow=arrow, group_bytes=group_bytes)
        self._table_row = form.table_row
        self.rows = 0
        self.written: WrittenFile | None = None

    def add(self, encoded: EncodedRow) -> None:
        row = encoded.row if self._table_row is None else self._table_row(encoded.row)
        self._table.add(row, len(encoded.line))
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
        sync_path(draft.path)
        digest, size = _folder_digest(draft.path)
        _replace_folder(draft.path, target)
    sync_path(target.parent)
    sink.written = WrittenFile(path, sink.rows, size, digest)


class _ShardSink:
    """Files `train-<n>-of-<count>.parquet`; at least one, so that an empty dataset has a schema."""

    def __init__(self, folder: Path, form: Format, shard_bytes: int, group_bytes: int) -> None:
        self._folder = folder
        self._form = form
        self._shard_bytes = shard_bytes
        self._group_bytes = group_bytes
        self._file: BinaryIO | None = None
        self._shards = 0
        self.rows = 0
        self.written: WrittenFile | None = None

    def add(self, encoded: EncodedRow) -> None:
        file = self._file or self._open_shard()
        self._table.add(encoded)
        self.rows += 1
        if file.tell() >= self._shard_bytes:
            self._close_shard(file)

    def finish(self) -> None:
        if self._file is not None or self._shards == 0:
            self._close_shard(self._file or self._open_shard())
        for number in range(self._shards):
            name = f"train-{number:05}-of-{self._shards:05}.parquet"
            (self._folder / str(number)).rename(self._folder / name)

    def abandon(self) -> None:
        if self._file is not None:
            self._table.abandon()
            with suppress(OSError):
                self._file.close()

    def _open_shard(self) -> BinaryIO:
        path = self._folder / str(self._shards)
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self._file = file
        self._table = _TableSink(file, self._form, group_bytes=self._group_bytes)
        self._shards += 1
        return file

    def _close_shard(self, file: BinaryIO) -> None:
        self._table.finish()
        file.flush()
        os.fsync(file.fileno())
        file.close()
        self._file = None


def _replace_folder(folder: Path, target: Path) -> None:
    """A folder cannot replace another: for a moment there is none, which is better than a mix of two."""
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

    def add(self, encoded: EncodedRow) -> None:
        assert self._form.lines is not None
        path = self._folder / f"{encoded.row['id']}.jsonl"
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            for line in self._form.lines(encoded.row):
                file.write(encode_row(line).line.encode("utf-8") + b"\n")
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
