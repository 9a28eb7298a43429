"""A dataset in files of the sandbox: JSON lines, JSON, CSV, Parquet or Arrow; one file, or a folder of them.

Files are read through the sandbox and parsed here, in memory; nothing in them is executed, and references in
a card to other files or addresses are not followed. A folder's splits come from the names of its files, by
the `datasets` library's conventions: `data/NAME-00000-of-00001.…`, or a keyword such as train, test,
validation. At most MAX_BYTES are read; rows beyond are not counted, and the view notes it.
"""

from __future__ import annotations

import asyncio
import csv
import io
import json
import re
from collections import Counter
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
from hermes.tools.files.search import files_command, private_tests
from hermes.tools.workspace import bad_path, os_errors, permit_path

MAX_BYTES = 64 * 1024 * 1024
_MAX_LISTED = 2_000
_LIST_TIMEOUT_S = 60.0
_TYPED_ROWS = 1_000
_SHARD = re.compile(r"(?:.*/)?data/(\w+(?:\.\w+)*)-\d{5}-of-\d{5}[^/]*")
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


async def inspect_files(
    bench: Workbench, path: str, split: str | None, offset: int, limit: int
) -> DatasetView:
    allowed = await permit_path(bench, path, "read")
    with os_errors(path):
        try:
            data = await bench.sandbox.read_file(allowed, MAX_BYTES + 1)
        except IsADirectoryError:
            files = await _list_data_files(bench, allowed, path)
            return await _folder(bench, path, files, split, offset, limit)
    suffix = PurePosixPath(path).suffix.lower()
    if suffix not in _FORMATS:
        raise bad_path(path, f"a dataset is a folder, or a file that ends with {', '.join(_FORMATS)}")
    table = await _parse_file(path, data, offset, limit, MAX_BYTES)
    name = split_of(PurePosixPath(path).name)
    if len(data) > MAX_BYTES:
        splits = [SplitInfo(None, name, None, None)]
        notes: tuple[str, ...] = (f"only the first {MAX_BYTES} bytes were read: rows are not counted",)
    else:
        splits, notes = [SplitInfo(None, name, table.rows_total, len(data))], ()
    selected = choose_split(splits, None, split)
    return DatasetView(path, {}, splits, selected, offset, table.columns, table.rows, notes)


async def _folder(
    bench: Workbench, path: str, files: Sequence[str], split: str | None, offset: int, limit: int
) -> DatasetView:
    by_split: dict[str, list[str]] = {}
    for file in files:
        by_split.setdefault(split_of(PurePosixPath(file).relative_to(path).as_posix()), []).append(file)
    selected = choose_split([SplitInfo(None, name, None, None) for name in by_split], None, split)
    view = DatasetView(path, {"files": len(files)}, (), selected, offset)
    splits = dict.fromkeys(by_split, selected)
    notes: list[str] = []
    max_bytes = MAX_BYTES
    # The selected split is read first, so that the byte limit applies to the others.
    for name in sorted(by_split, key=lambda name: name != selected.split):
        is_selected = name == selected.split
        part = await _read_split(bench, by_split[name], max_bytes, offset, limit if is_selected else 0)
        max_bytes -= part.size_bytes
        if is_selected:
            view = replace(view, columns=part.table.columns, rows=part.table.rows)
        if not part.whole:
            notes.append(f"rows of '{name}' are not counted: the files have more than {MAX_BYTES} bytes")
        counted = (part.table.rows_total, part.size_bytes) if part.whole else (None, None)
        splits[name] = SplitInfo(None, name, *counted)
    return replace(view, splits=list(splits.values()), notes=tuple(notes))


@dataclass(frozen=True, slots=True)
class _SplitPart:
    """The part of a split that was read."""

    table: TableSlice
    size_bytes: int
    whole: bool


async def _read_split(
    bench: Workbench, files: Sequence[str], max_bytes: int, offset: int, limit: int
) -> _SplitPart:
    table = TableSlice(0, (), ())
    size_bytes = 0
    for file in files:
        left_bytes = max_bytes - size_bytes
        with os_errors(file):
            data = await bench.sandbox.read_file(await permit_path(bench, file, "read"), left_bytes + 1)
        cut = len(data) > left_bytes
        if cut and (table.rows or not limit):
            return _SplitPart(table, size_bytes, whole=False)
        part = await _parse_file(
            file, data, max(0, offset - table.rows_total), limit - len(table.rows), left_bytes
        )
        table = TableSlice(
            table.rows_total + part.rows_total, table.columns or part.columns, (*table.rows, *part.rows)
        )
        size_bytes += min(len(data), left_bytes)
        if cut:
            return _SplitPart(table, size_bytes, whole=False)
    return _SplitPart(table, size_bytes, whole=True)


def split_of(path: str) -> str:
    """The split that a file of a folder belongs to, by its name; 'train' if the name has no keyword."""
    shard = _SHARD.fullmatch(path)
    if shard is not None:
        return _SPLIT_WORD.get(shard[1], shard[1])
    words = (word for part in reversed(path.split("/")) for word in _WORDS.findall(part.lower()))
    return next((_SPLIT_WORD[word] for word in words if word in _SPLIT_WORD), "train")


async def _list_data_files(bench: Workbench, allowed: str, path: str) -> list[str]:
    """The data files of a folder: those of its most frequent kind, as the `datasets` library chooses."""
    root = allowed if allowed.startswith("/") else f"./{allowed}"
    command = files_command("*", root, None, _MAX_LISTED + 1, private_tests(bench, root))
    result = await bench.sandbox.run(command, timeout_s=_LIST_TIMEOUT_S)
    names = [PurePosixPath(line) for line in result.output.splitlines()]
    data = [name for name in names if name.suffix.lower() in _FORMATS and not name.name.startswith(".")]
    data = [name for name in data if name.name not in _NOT_DATA]
    if not data:
        raise ToolError(f"'{path}' has no data files: {', '.join(_FORMATS)}")
    if len(names) > _MAX_LISTED:
        raise ToolError(f"'{path}' has more than {_MAX_LISTED} files; name a folder inside it, or one file")
    counts = Counter(name.suffix.lower() for name in data)
    order = list(_FORMATS)
    kind = max(counts, key=lambda suffix: (counts[suffix], -order.index(suffix)))
    base = PurePosixPath(root)
    return [str(PurePosixPath(path) / name.relative_to(base)) for name in data if name.suffix.lower() == kind]


async def _parse_file(path: str, data: bytes, offset: int, limit: int, max_bytes: int) -> TableSlice:
    """Parses a file; `data` has at most one byte more than `max_bytes`."""
    file_format = _FORMATS[PurePosixPath(path).suffix.lower()]
    if len(data) > max_bytes:
        if not file_format.by_lines:
            raise ToolError(f"'{path}' has more than {max_bytes} bytes; look at it with code or commands")
        data = data[: data.rfind(b"\n", 0, max_bytes) + 1]
    try:
        return await asyncio.to_thread(file_format.read, data, offset, limit)
    except MissingDependencyError as error:
        raise ToolError(f"{error.message} The user can install it: {error.hint}") from error
    except (ValueError, OSError) as error:  # pyarrow's errors are both
        raise ToolError(f"'{path}' cannot be read: {error}") from error


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
_NOT_DATA = frozenset({"dataset_info.json", "dataset_dict.json", "state.json"})
"""Files that `datasets.save_to_disk` writes beside the data."""
