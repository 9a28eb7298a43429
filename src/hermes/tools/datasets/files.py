"""A dataset in a file of the sandbox: JSON lines, JSON, CSV, Parquet or Arrow.

The file is read through the sandbox and parsed here, in memory; nothing in it is executed. At most MAX_BYTES
are read; rows beyond are not counted, and the view notes it.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import PurePosixPath
from typing import Any

from hermes.core import JSONObject
from hermes.errors import MissingDependencyError, ToolError
from hermes.tools.base import Workbench
from hermes.tools.datasets.view import ColumnInfo, DatasetView, SplitInfo, choose_split, value_types
from hermes.tools.workspace import bad_path, os_errors, permit_path

MAX_BYTES = 64 * 1024 * 1024
_TYPED_ROWS = 1_000
_KEYWORDS = {
    "train": ("train", "training"),
    "validation": ("validation", "valid", "dev", "val"),
    "test": ("test", "testing", "eval", "evaluation"),
}
_SPLIT_WORD = {word: split for split, words in _KEYWORDS.items() for word in words}
_WORDS = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class TableSlice:
    """A part of the rows of one file."""

    rows_total: int
    columns: Sequence[ColumnInfo]
    rows: Sequence[JSONObject]


async def inspect_file(
    bench: Workbench, path: str, split: str | None, offset: int, limit: int
) -> DatasetView:
    allowed = await permit_path(bench, path, "read")
    with os_errors(path):
        data = await bench.sandbox.read_file(allowed, MAX_BYTES + 1)
    name = PurePosixPath(path)
    if name.suffix.lower() not in _FORMATS:
        raise bad_path(path, f"a dataset is a file that ends with {', '.join(_FORMATS)}")
    table = await _parse_file(path, data, offset, limit)
    info = SplitInfo(None, split_of(name.name), table.rows_total, len(data))
    notes: tuple[str, ...] = ()
    if len(data) > MAX_BYTES:
        info = replace(info, rows=None, size_bytes=None)
        notes = (f"only the first {MAX_BYTES} bytes were read: rows are not counted",)
    selected = choose_split([info], None, split)
    return DatasetView(path, {}, [info], selected, offset, table.columns, table.rows, notes)


def split_of(name: str) -> str:
    """The split of a file by its name, as the `datasets` library has it; 'train' if there is no keyword."""
    words = _WORDS.findall(name.lower())
    return next((_SPLIT_WORD[word] for word in words if word in _SPLIT_WORD), "train")


async def _parse_file(path: str, data: bytes, offset: int, limit: int) -> TableSlice:
    """Parses a file; `data` has at most one byte more than MAX_BYTES."""
    file_format = _FORMATS[PurePosixPath(path).suffix.lower()]
    if len(data) > MAX_BYTES:
        if not file_format.by_lines:
            raise ToolError(f"'{path}' has more than {MAX_BYTES} bytes; look at it with code or commands")
        data = data[: data.rfind(b"\n", 0, MAX_BYTES) + 1]
    try:
        return await asyncio.to_thread(file_format.read, data, offset, limit)
    except MissingDependencyError as error:
        raise ToolError(f"{error.message} The user can install it: {error.hint}") from error
    except RecursionError as error:
        raise ToolError(f"'{path}' cannot be read: it is nested too deeply") from error
    except (ValueError, OSError, csv.Error) as error:  # pyarrow's errors are the first two
        raise ToolError(f"'{path}' cannot be read: {' '.join(str(error).split())}") from error


def _read_jsonl(data: bytes, offset: int, limit: int) -> TableSlice:
    def records() -> Iterator[JSONObject]:
        for number, line in enumerate(io.BytesIO(data), 1):
            if line.strip():
                try:
                    yield _record(json.loads(line.decode("utf-8-sig" if number == 1 else "utf-8")))
                except ValueError as error:
                    raise ValueError(f"line {number}: {error}") from error

    return _table(records(), offset, limit)


def _read_json(data: bytes, offset: int, limit: int) -> TableSlice:
    content = json.loads(data)
    if not isinstance(content, list):
        raise ValueError("a .json dataset is one array of objects")
    return _table(map(_record, content), offset, limit)


def _read_csv(data: bytes, offset: int, limit: int) -> TableSlice:
    reader = csv.DictReader(io.StringIO(data.decode("utf-8-sig"), newline=""))
    return _table(({str(name): value for name, value in row.items()} for row in reader), offset, limit)


def _record(value: object) -> JSONObject:
    if not isinstance(value, dict):
        raise ValueError(f"a row is an object, not {type(value).__name__}")
    return value


def _table(records: Iterator[JSONObject], offset: int, limit: int) -> TableSlice:
    head: list[JSONObject] = []
    selected: list[JSONObject] = []
    count = 0
    for count, record in enumerate(records, 1):
        if count <= _TYPED_ROWS:
            head.append(record)
        if offset < count <= offset + limit:
            selected.append(record)
    return TableSlice(count, value_types(head), selected)


def _read_parquet(data: bytes, offset: int, limit: int) -> TableSlice:
    file = _arrow("parquet").ParquetFile(io.BytesIO(data))
    rows = _slice(file.iter_batches(batch_size=max(limit, 1)), offset, limit)
    return TableSlice(file.metadata.num_rows, _arrow_columns(file.schema_arrow), rows)


def _read_arrow(data: bytes, offset: int, limit: int) -> TableSlice:
    ipc = _arrow("ipc")
    if data.startswith(b"ARROW1"):
        file = ipc.open_file(io.BytesIO(data))
        batches = [file.get_batch(number) for number in range(file.num_record_batches)]
    else:
        file = ipc.open_stream(io.BytesIO(data))
        batches = list(file)
    total = sum(batch.num_rows for batch in batches)
    return TableSlice(total, _arrow_columns(file.schema), _slice(batches, offset, limit))


def _arrow_columns(schema: Any) -> list[ColumnInfo]:
    return [ColumnInfo(field.name, str(field.type)) for field in schema]


def _slice(batches: Any, offset: int, limit: int) -> list[JSONObject]:
    rows = (row for batch in _skip_rows(batches, offset) for row in batch.to_pylist())
    return list(islice(rows, limit))


def _skip_rows(batches: Any, offset: int) -> Iterator[Any]:
    """The batches without their first `offset` rows, which are not decoded."""
    for batch in batches:
        if offset < batch.num_rows:
            yield batch.slice(offset)
        offset = max(0, offset - batch.num_rows)


def _arrow(module: str) -> Any:
    try:
        return import_module(f"pyarrow.{module}")
    except ImportError as error:
        raise MissingDependencyError("pyarrow", "export", "Reading Parquet and Arrow files") from error


@dataclass(frozen=True, slots=True)
class _FileFormat:
    read: Callable[[bytes, int, int], TableSlice]
    by_lines: bool
    """Whether a file can be parsed without its end."""


_FORMATS = {
    ".parquet": _FileFormat(_read_parquet, by_lines=False),
    ".jsonl": _FileFormat(_read_jsonl, by_lines=True),
    ".ndjson": _FileFormat(_read_jsonl, by_lines=True),
    ".csv": _FileFormat(_read_csv, by_lines=True),
    ".arrow": _FileFormat(_read_arrow, by_lines=False),
    ".json": _FileFormat(_read_json, by_lines=False),
}
