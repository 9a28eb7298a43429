"""Tables for the terminal: columns of equal width, two spaces apart, nothing after the last column."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click


def table_lines(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """The rows as lines of text that are safe to print."""
    from hermes.safety.text import printable

    table = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    for row in table:
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True)).rstrip()


def columns(table: Sequence[Sequence[str]]) -> str:
    """The rows as text, the first one dimmed as a heading; empty columns are dropped."""
    used = [index for index in range(len(table[0])) if any(row[index] for row in table[1:])]
    heading, *lines = table_lines([[row[index] for index in used] for row in table])
    return "\n".join([click.style(heading, dim=True), *lines])
