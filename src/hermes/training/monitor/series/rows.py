"""Rows of a `metrics.jsonl`, read a chunk at a time: memory does not grow with the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

from jiter import from_json

CHUNK_BYTES = 1 << 20
_MAX_LINE_BYTES = 16 << 20
"""A longer line is no row."""
_MAX_STEP = 1 << 53
"""Up to here a step is exact as a float."""

Row = dict[str, Any]


def parse_row(line: bytes) -> Row | None:
    """None: not the complete row of a step."""
    try:
        row = from_json(line, cache_mode="keys")
    except ValueError:
        row = _parse_with_json(line)
    if not isinstance(row, dict) or type(row.get("step")) is not int or abs(row["step"]) > _MAX_STEP:
        return None
    return row


def _parse_with_json(line: bytes) -> Any:
    """Knows text that the quick parser refuses, as half of a surrogate pair."""
    try:
        return json.loads(line)
    except (ValueError, RecursionError):
        return None


def complete_lines(file: BinaryIO, offset: int, end: int) -> Iterator[tuple[int, list[bytes]]]:
    """The lines from `offset` on, some at a time: the position of the first, and the lines.

    A last line that is not complete yet is left out. `offset` is the beginning of a line.
    """
    begin, unfinished, dropped_bytes = offset, b"", 0
    while offset < end:
        file.seek(offset)  # the caller may read elsewhere in between
        chunk = file.read(min(CHUNK_BYTES, end - offset))
        if not chunk:
            return
        offset += len(chunk)
        lines = (unfinished + chunk).split(b"\n")
        unfinished = lines.pop()
        if lines:
            if dropped_bytes:
                begin += dropped_bytes + len(lines.pop(0)) + 1
                dropped_bytes = 0
            yield begin, lines
            begin = offset - len(unfinished)
        if len(unfinished) > _MAX_LINE_BYTES:
            dropped_bytes += len(unfinished)
            unfinished = b""


def rows_from(file: BinaryIO, offset: int, end: int) -> Iterator[tuple[Row, int]]:
    """The rows from `offset` on, with their positions, in the order of the file."""
    for begin, lines in complete_lines(file, offset, end):
        at = begin
        for line in lines:
            row = parse_row(line)
            if row is not None:
                yield row, at
            at += len(line) + 1
