"""Changing text: exact replacement and unified diffs, as pure functions.

Both either change everything they were asked to or raise `ToolError` and change nothing. A diff's line
numbers are taken as a hint, since models count badly; its lines are not: every context and removed line
must be in the text, word for word, at one place only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from hermes.errors import ToolError

_NEAR_LINES = 5_000
"""Texts with more lines are not searched for similar ones: the search compares every line."""
_NEAR_RATIO = 0.6
_HEADER = re.compile(r"@@(?: -(\d{1,9})(?:,\d+)? \+\d+(?:,\d+)? @@)?.*")


@dataclass(frozen=True, slots=True)
class Changed:
    text: str
    lines: tuple[int, ...]
    """Where each change begins, as line numbers of the old text."""


def replace_exact(text: str, old: str, new: str, *, replace_all: bool) -> Changed:
    """`old` replaced by `new`, where it occurs exactly once (or everywhere, with `replace_all`)."""
    if not old:
        raise ToolError("old is empty: give the text to be replaced")
    if old == new:
        raise ToolError("old and new are the same: nothing would change")
    places = _occurrences(text, old)
    if not places:
        nearest = _nearest(text.split("\n"), old.split("\n"))
        raise ToolError(f"old does not occur in the file{nearest}")
    lines = tuple(text.count("\n", 0, place) + 1 for place in places)
    if len(places) > 1 and not replace_all:
        where = ", ".join(map(str, lines[:10]))
        raise ToolError(
            f"old occurs {len(places)} times, at lines {where}: add lines around it until it is unique, "
            "or set replace_all"
        )
    return Changed(text.replace(old, new), lines)


def apply_diff(text: str, diff: str) -> Changed:
    """The text with every hunk of a unified diff of one file applied."""
    hunks, ends_with_newline = _parse(diff)
    lines = text.split("\n")
    terminated = lines[-1] == ""
    if terminated:
        lines.pop()
    done: list[str] = []
    at: list[int] = []
    start = 0
    for number, hunk in enumerate(hunks, 1):
        place = _locate(hunk, lines, start, number)
        done += lines[start:place] + hunk.new
        at.append(place + 1)
        start = place + len(hunk.old)
    done += lines[start:]
    newline = terminated if ends_with_newline is None else ends_with_newline
    return Changed("\n".join(done) + ("\n" if done and newline else ""), tuple(at))


@dataclass(slots=True)
class _Hunk:
    line: int | None
    """First old line according to the header; None if it does not say."""
    body: list[tuple[str, str]] = field(default_factory=list)
    """(' ', '-' or '+'; the line)."""

    @property
    def old(self) -> list[str]:
        return [line for mark, line in self.body if mark != "+"]

    @property
    def new(self) -> list[str]:
        return [line for mark, line in self.body if mark != "-"]


def _parse(diff: str) -> tuple[list[_Hunk], bool | None]:
    """The hunks, and whether the new text ends with a newline if the diff says so."""
    hunks: list[_Hunk] = []
    ends_with_newline: bool | None = None
    rows = diff.rstrip("\n").split("\n")
    for index, row in enumerate(rows):
        header = _HEADER.fullmatch(row)
        if header:
            hunks.append(_Hunk(int(header[1]) if header[1] else None))
        elif not hunks:
            continue  # file headers
        elif row.startswith("\\"):
            ends_with_newline = hunks[-1].body[-1][0] == "-" if hunks[-1].body else None
        elif row == "" or row[0] in " +-":
            if _next_file(rows, index):
                raise ToolError("the diff changes several files: give one call per file")
            hunks[-1].body.append((row[:1] or " ", row[1:]))
        else:
            raise ToolError(f"line {index + 1} of the diff begins with none of ' ', '+', '-' and '@@'")
    if not any(mark != " " for hunk in hunks for mark, _ in hunk.body):
        raise ToolError("the diff changes nothing: it needs '@@' hunks with '+' or '-' lines")
    return hunks, ends_with_newline


def _next_file(rows: list[str], index: int) -> bool:
    """True at the header of another file (a hunk that ends in two such rows is not worth telling apart)."""
    following = rows[index : index + 3]
    return len(following) == 3 and all(map(str.startswith, following, ("--- ", "+++ ", "@@")))


def _locate(hunk: _Hunk, lines: list[str], start: int, number: int) -> int:
    """Index of the line at which the hunk's old lines begin, at or after `start`."""
    old = hunk.old
    if not old:
        if hunk.line is None or not start <= hunk.line <= len(lines):
            raise ToolError(f"hunk {number} only adds lines and does not say where: add context lines")
        return hunk.line
    stated = -1 if hunk.line is None else hunk.line - 1
    if stated >= start and lines[stated : stated + len(old)] == old:
        return stated
    places = [
        place for place in range(start, len(lines) - len(old) + 1) if lines[place : place + len(old)] == old
    ]
    if len(places) == 1:
        return places[0]
    if places:
        where = ", ".join(str(place + 1) for place in places[:10])
        raise ToolError(f"hunk {number} fits at several lines ({where}): add more context lines")
    raise ToolError(f"hunk {number} does not fit the file{_nearest(lines, old)}")


def _occurrences(text: str, part: str) -> list[int]:
    places: list[int] = []
    place = text.find(part)
    while place >= 0:
        places.append(place)
        place = text.find(part, place + len(part))
    return places


def _nearest(lines: list[str], wanted: list[str]) -> str:
    """What the text has instead, as the end of an error message; empty if nothing is like it."""
    if len(lines) > _NEAR_LINES:
        return ""
    words, wanted_words = [line.split() for line in lines], [line.split() for line in wanted]
    for place in range(len(lines) - len(wanted) + 1):
        if words[place : place + len(wanted)] == wanted_words:
            return f"; line {place + 1} differs only in white space:\n{_excerpt(lines, place, len(wanted))}"
    anchor = max(wanted, key=lambda line: len(line.strip())).strip()
    matcher = SequenceMatcher(b=anchor, autojunk=False)
    best, best_ratio = -1, _NEAR_RATIO
    for place, line in enumerate(lines):
        matcher.set_seq1(line.strip()[: 2 * len(anchor) + 20])
        if matcher.real_quick_ratio() > best_ratio and matcher.quick_ratio() > best_ratio:
            ratio = matcher.ratio()
            if ratio > best_ratio:
                best, best_ratio = place, ratio
    return "" if best < 0 else f"; the nearest lines are:\n{_excerpt(lines, max(0, best - 2), 5)}"


def _excerpt(lines: list[str], start: int, count: int) -> str:
    shown = lines[start : start + min(count, 20)]
    return "\n".join(f"{number:6}\t{line[:200]}" for number, line in enumerate(shown, start + 1))
