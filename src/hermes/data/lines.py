"""Rows as lines of JSON that any loader accepts, and reading such lines back with their numbers.

Lone surrogates, which no loader accepts, are replaced by U+FFFD; the store keeps the original text.
Characters that some readers take for the end of a line are escaped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from hermes.core import JSONObject, ordered_json
from hermes.errors import UsageError

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
    """The lines of a JSONL file that are not blank; a broken one with its problem."""
    try:
        with path.open("rb") as file:
            for number, data in enumerate(file, 1):
                if data.strip():
                    yield _line(number, data)
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "name a file that you can read") from error


def _line(number: int, data: bytes) -> Line:
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
