"""Tables for the terminal: columns of equal width, two spaces apart, nothing after the last column."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator, Sequence

import click

_LAST_COLUMN = 16
"""Least width of the last column, which holds free text."""


def table_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows as lines of text that are safe to print."""
    from hermes.safety.text import printable

    table = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def columns(
    table: Sequence[Sequence[str]], *, less_important: Sequence[str] = (), width: int | None = None
) -> str:
    """The rows as text, the first one dimmed as a heading; empty columns are dropped.

    Where the rows are wider than `width` (default: the terminal's, unlimited elsewhere), columns with the
    headings `less_important` are left out, in that order, until they fit; then the last column is cut.
    """
    used = [index for index in range(len(table[0])) if any(row[index] for row in table[1:])]
    width = terminal_width() if width is None else width
    for name in less_important:
        if _width(table, used) <= width - _LAST_COLUMN:
            break
        used = [index for index in used if table[0][index] != name]
    room = max(_LAST_COLUMN, width - _width(table, used))
    rows = [[*(row[index] for index in used[:-1]), _cut(row[used[-1]], room)] for row in table]
    heading, *lines = table_lines(rows)
    return "\n".join([click.style(heading, dim=True), *lines])


def terminal_width() -> int:
    """Columns of the terminal; no limit where output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def _width(table: Sequence[Sequence[str]], used: Sequence[int]) -> int:
    """Of all used columns but the last."""
    return sum(max(len(row[index]) for row in table) + 2 for index in used[:-1])


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
