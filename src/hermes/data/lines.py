"""Rows as lines of JSON that any loader accepts, and reading lines and tables back with their numbers.

Lone surrogates, which no loader accepts, are replaced by U+FFFD; the store keeps the original text.
Characters that some readers take for the end of a line are escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

from hermes.core import JSONObject, ordered_json
from hermes.errors import MissingDependencyError, UsageError

MAX_LINE_BYTES = 256 << 20
_BATCH_ROWS = 64
_MAX_GROWTH = 100
_FREE_BYTES = 64 << 20
"""A row group of a small Parquet file may take this much memory, whatever its size."""

_LINE_ENDS = {ord(end): f"\\u{ord(end):04x}" for end in "\x85\u2028\u2029"}
"""Those that JSON does not escape."""


class Line(NamedTuple):
    number: int
    """From 1."""
    row: JSONObject | None
    """None if the line is not a JSON object."""
    problem: str | None
    """Why it is not."""


class EncodedRow(NamedTuple):
    """A row and its line of JSON, without newline."""

    row: JSONObject
    line: str


def encode_row(row: JSONObject) -> EncodedRow:
    """The row in the form that any loader accepts."""
    text = json.dumps(row, ensure_ascii=False)
    if not text.isascii():
        text = text.translate(_LINE_ENDS)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        row = json.loads(text)
    return EncodedRow(row, text)


def exact_line(row: JSONObject) -> str:
    """The row as one line of JSON that loses nothing; lone surrogates become escapes."""
    text = ordered_json(row)
    return text if text.isascii() else text.translate(_LINE_ENDS)


def read_lines(path: Path) -> Iterator[Line]:
    """The lines of a JSONL file that are not blank; a broken one with its problem.

    UsageError: the file cannot be read, or a line is so long that it is none.
    """
    with _file_errors(path), path.open("rb") as file:
        for number in count(1):
            data = file.readline(MAX_LINE_BYTES + 1)
            if len(data) > MAX_LINE_BYTES:
                raise UsageError(
                    f"{path}:{number}: longer than {MAX_LINE_BYTES >> 20} MiB", "is it a file of JSON lines?"
                )
            if not data:
                return
            if data.strip():
                yield parse_line(number, data)


def read_parquet(path: Path) -> Iterator[Line]:
    """The rows of a Parquet file, with their nulls; one that cannot be decoded with its problem.

    UsageError: it is no Parquet file, or its pages become far larger than it.
    """
    try:
        import pyarrow.parquet  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDependencyError("pyarrow", "export", "reading Parquet") from error
    damage = (pyarrow.ArrowException, OSError, ValueError)
    try:
        file = pyarrow.parquet.ParquetFile(path)
        _refuse_bomb(path, file.metadata)
    except damage as error:
        raise UsageError(f"cannot read {path}: {_one_line(error)}", "is it a Parquet file?") from error
    batches = file.iter_batches(batch_size=_BATCH_ROWS)
    number = 0
    while True:
        try:
            batch = next(batches, None)
        except damage as error:
            yield Line(number + 1, None, f"from here on the file is damaged: {_one_line(error)}")
            return
        if batch is None:
            return
        for index in range(batch.num_rows):
            number += 1
            try:
                yield Line(number, batch.slice(index, 1).to_pylist()[0], None)
            except damage as error:
                yield Line(number, None, f"the row cannot be decoded: {_one_line(error)}")


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())


def _refuse_bomb(path: Path, metadata: Any) -> None:
    """UsageError: by its own account the file becomes far larger than it is."""
    size_bytes = path.stat().st_size
    groups = (metadata.row_group(number) for number in range(metadata.num_row_groups))
    largest = max((group.total_byte_size for group in groups), default=0)
    if largest > max(_MAX_GROWTH * size_bytes, _FREE_BYTES) or metadata.num_rows > _MAX_GROWTH * size_bytes:
        raise UsageError(
            f"{path} has {size_bytes:,} bytes, and becomes {largest:,} bytes and {metadata.num_rows:,} rows",
            "convert it to JSONL yourself if you trust it",
        )


@contextmanager
def _file_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "name a file that you can read") from error


def parse_line(number: int, data: bytes) -> Line:
    """One line of JSON, with its problem if it is none."""
    try:
        value = json.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        return Line(number, None, "not UTF-8 text")
    except ValueError as error:
        return Line(number, None, f"not JSON: {error}")
    except RecursionError:
        return Line(number, None, "nested too deeply")
    if not isinstance(value, dict):
        return Line(number, None, f"a JSON {type(value).__name__}, not an object")
    return Line(number, value, None)
