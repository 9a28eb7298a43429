"""Markdown of a streaming answer for a terminal.

Each piece is printed as it arrives. When a line is complete and has marks of Markdown, it is printed again in
its place, with the marks turned into styles. A line that is taller than the terminal stays as it is. The text
must be safe to print already.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable

import click

_HEADING = re.compile(r"(#{1,6}) +(.*)")
_BULLET = re.compile(r"( *)[-*+] +(.*)")
_QUOTE = re.compile(r"> ?(.*)")
_SPAN = re.compile(r"`([^`]+)`|\*\*(\S(?:.*?\S)?)\*\*")


def style_line(line: str, *, in_code: bool) -> str:
    """One line with its marks as styles; the line unchanged if it has none. Fences are the caller's."""
    if in_code:
        return click.style(line, fg="cyan") if line else line
    if heading := _HEADING.fullmatch(line):
        return click.style(heading[2], bold=True)
    if quote := _QUOTE.fullmatch(line):
        return click.style(f"│ {quote[1]}", dim=True)
    if bullet := _BULLET.fullmatch(line):
        return f"{bullet[1]}• {_spans(bullet[2])}"
    return _spans(line)


def _spans(text: str) -> str:
    return _SPAN.sub(
        lambda span: click.style(span[1], fg="cyan") if span[1] else click.style(span[2], bold=True), text
    )


def is_fence(line: str) -> bool:
    return line.lstrip().startswith(("```", "~~~"))


class MarkdownStream:
    """Prints the pieces of one answer; `end` after the last one."""

    def __init__(self, write: Callable[[str], None]) -> None:
        self._write = write
        self._line = ""
        self._in_code = False

    def feed(self, text: str) -> None:
        *complete, rest = text.split("\n")
        for part in complete:
            self._write(part)
            self._line += part
            self._restyle()
            self._write("\n")
            self._line = ""
        self._write(rest)
        self._line += rest

    def end(self) -> None:
        """The answer is complete: its last line gets its styles too."""
        self._restyle()
        self._line, self._in_code = "", False

    def _restyle(self) -> None:
        line = self._line
        if is_fence(line):
            self._in_code = not self._in_code
            styled = click.style(line, dim=True)
        else:
            styled = style_line(line, in_code=self._in_code)
        if styled == line:
            return
        from prompt_toolkit.utils import get_cwidth

        size = shutil.get_terminal_size()
        rows_above = max(0, get_cwidth(line) - 1) // size.columns
        if rows_above >= size.lines - 1:
            return
        up = f"\x1b[{rows_above}A" if rows_above else ""
        self._write(f"{up}\r\x1b[J{styled}")
