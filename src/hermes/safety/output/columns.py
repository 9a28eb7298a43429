"""Rows and texts as lines for a terminal: aligned, safe to print, and as wide as it at most.

Where output is no terminal there is no limit, so that a program that reads it gets one line for each row.
"""

from __future__ import annotations

import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Sequence
from itertools import zip_longest

from hermes.safety.text import printable

GAP = 2
_PARTS = re.compile(r"[^/_.,:]*[/_.,:]+|[^/_.,:]+")
NARROWEST = 12
"""Least width of a column that is wrapped."""


def terminal_width() -> int:
    """Columns of the terminal; no limit where output is no terminal."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else sys.maxsize


def aligned_lines(rows: Sequence[Sequence[str]], width: int | None = None) -> Iterator[str]:
    """The rows in columns, two spaces apart; cells of the widest columns are wrapped until a row fits."""
    table = [[printable(cell) for cell in row] for row in rows]
    longest = [max(len(cell) for cell in column) for column in zip(*table, strict=True)]
    widths = _fitting(longest, terminal_width() if width is None else width)
    for row in table:
        cells = [_wrap(cell, room) for cell, room in zip(row, widths, strict=True)]
        for parts in zip_longest(*cells, fillvalue=""):
            padded = (f"{part:<{room}}" for part, room in zip(parts, widths, strict=True))
            yield (" " * GAP).join(padded).rstrip()


def wrapped(text: str, width: int | None = None) -> str:
    """The text with its long lines wrapped beneath what follows their first gap of two spaces."""
    limit = terminal_width() if width is None else width
    return "\n".join(part for line in text.split("\n") for part in _wrapped_line(line, limit))


def _wrapped_line(line: str, limit: int) -> list[str]:
    if len(line) <= limit:
        return [line]
    gaps = [match.end() for match in re.finditer(r"\S {2,}(?=\S)", line) if match.end() <= limit // 2]
    indent = gaps[-1] if gaps else len(line) - len(line.lstrip())
    parts = _wrap(line[indent:], max(NARROWEST, limit - indent))
    return [line[:indent] + parts[0], *(" " * indent + part for part in parts[1:])]


def _fitting(longest: Sequence[int], width: int) -> list[int]:
    """Widths of the columns: the widest ones give up what is too much, as far as they can."""
    widths = list(longest)
    excess = sum(widths) + GAP * (len(widths) - 1) - width
    while excess > 0:
        widest = max(range(len(widths)), key=lambda index: widths[index])
        second_width = sorted(widths)[-2] if len(widths) > 1 else 0
        room = max(NARROWEST, min(second_width, widths[widest] - 1), widths[widest] - excess)
        if room >= widths[widest]:
            break
        excess -= widths[widest] - room
        widths[widest] = room
    return widths


def _wrap(text: str, width: int) -> list[str]:
    if len(text) <= width:
        return [text]
    return _NameWrapper(width, break_long_words=True, break_on_hyphens=False).wrap(text) or [""]


class _NameWrapper(textwrap.TextWrapper):
    """Breaks words that are too long behind a sign that joins the parts of a name or path, if it can."""

    def _split(self, text: str) -> list[str]:
        words = super()._split(text)
        return [
            part for word in words for part in (_PARTS.findall(word) if len(word) > self.width else [word])
        ]
