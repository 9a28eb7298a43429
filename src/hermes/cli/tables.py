"""Tables for the terminal: columns of equal width, two spaces apart, nothing after the last column."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import click

_LAST_COLUMN = 16
"""Least width of the last column, which holds free text."""


def table_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows as lines of text that are safe to print; on a terminal, cells are wrapped to its width."""
    from hermes.safety.output.columns import aligned_lines

    return aligned_lines(rows)


def print_table(rows: Sequence[Sequence[str]]) -> None:
    for line in table_lines(rows):
        click.echo(line)


def columns(
    table: Sequence[Sequence[str]], *, less_important: Sequence[str] = (), width: int | None = None
) -> str:
    """The rows as text, the first one dimmed as a heading; empty columns are dropped.

    Where the rows are wider than `width` (default: the terminal's, unlimited elsewhere), columns with the
    headings `less_important` are left out, in that order, until they fit; then the last column is cut.
    """
    from hermes.safety.output.columns import aligned_lines, terminal_width

    used = [index for index in range(len(table[0])) if any(row[index] for row in table[1:])]
    width = terminal_width() if width is None else width
    for name in less_important:
        if _width(table, used) <= width - _LAST_COLUMN:
            break
        used = [index for index in used if table[0][index] != name]
    room = max(_LAST_COLUMN, width - _width(table, used))
    rows = [[*(row[index] for index in used[:-1]), _cut(row[used[-1]], room)] for row in table]
    heading, *lines = aligned_lines(rows, sys.maxsize)
    return "\n".join([click.style(heading, dim=True), *lines])


def _width(table: Sequence[Sequence[str]], used: Sequence[int]) -> int:
    """The width of all used columns but the last."""
    return sum(max(len(row[index]) for row in table) + 2 for index in used[:-1])


def _cut(text: str, width: int) -> str:
    return text if len(text) <= width else text[: width - 1] + "…"
