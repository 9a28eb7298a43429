"""patch: a change to a part of a text file, by exact replacement or by unified diff; all or nothing.

Both are pure functions, and apply the complete change or raise `ToolError`. A diff's line numbers are only a
hint, since models count badly; its lines are not: the context and removed lines of a hunk must occur verbatim
at exactly one position.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from difflib import SequenceMatcher

from hermes.core import JSONObject, ToolErrorKind
from hermes.errors import ToolError
from hermes.tools.base import Tool, Workbench, object_schema
from hermes.tools.files.read_write import MAX_BYTES, write_lock
from hermes.tools.workspace import os_errors, permit_path

_NEAR_LINES = 5_000
"""Texts with more lines are not searched for similar ones: the search compares every line."""
_NEAR_RATIO = 0.6
_HEADER = re.compile(r"@@(?: -(\d{1,9})(?:,\d+)? \+\d+(?:,\d+)? @@)?.*")


@dataclass(frozen=True, slots=True)
class TextChange:
    text: str
    lines: tuple[int, ...]
    """Where each change begins, as line numbers of the old text."""


def replace_exact(text: str, old: str, new: str, *, replace_all: bool) -> TextChange:
    """`old` replaced by `new`, where it occurs exactly once (or everywhere, with `replace_all`)."""
    if not old:
        raise ToolError("old is empty: give the text to be replaced")
    if old == new:
        raise ToolError("old and new are the same: nothing would change")
    positions = _occurrences(text, old)
    if not positions:
        nearest = _nearest(text.split("\n"), old.split("\n"))
        raise ToolError(f"old does not occur in the file{nearest}")
    lines = tuple(text.count("\n", 0, position) + 1 for position in positions)
    if len(positions) > 1 and not replace_all:
        where = ", ".join(map(str, lines[:10]))
        raise ToolError(
            f"old occurs {len(positions)} times, at lines {where}: add lines around it until it is unique, "
            "or set replace_all"
        )
    return TextChange(text.replace(old, new), lines)


def apply_diff(text: str, diff: str) -> TextChange:
    """The text with every hunk of a unified diff of one file applied."""
    hunks, ends_with_newline = _parse(diff)
    lines = text.split("\n")
    terminated = lines[-1] == ""
    if terminated:
        lines.pop()
    new_lines: list[str] = []
    changed_lines: list[int] = []
    start = 0
    for number, hunk in enumerate(hunks, 1):
        index = _locate(hunk, lines, start, number)
        new_lines += lines[start:index] + hunk.new
        changed_lines.append(index + 1)
        start = index + len(hunk.old)
    new_lines += lines[start:]
    newline = terminated if ends_with_newline is None else ends_with_newline
    return TextChange("\n".join(new_lines) + ("\n" if new_lines and newline else ""), tuple(changed_lines))


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
    """True at the header of another file (a hunk that ends in two such rows is not distinguished)."""
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
    matches = [
        index for index in range(start, len(lines) - len(old) + 1) if lines[index : index + len(old)] == old
    ]
    if len(matches) == 1:
        return matches[0]
    if matches:
        where = ", ".join(str(index + 1) for index in matches[:10])
        raise ToolError(f"hunk {number} fits at several lines ({where}): add more context lines")
    raise ToolError(f"hunk {number} does not fit the file{_nearest(lines, old)}")


def _occurrences(text: str, part: str) -> list[int]:
    positions: list[int] = []
    position = text.find(part)
    while position >= 0:
        positions.append(position)
        position = text.find(part, position + len(part))
    return positions


def _nearest(lines: list[str], target: list[str]) -> str:
    """The most similar lines, as the end of an error message; empty if there are none."""
    if len(lines) > _NEAR_LINES:
        return ""
    words, target_words = [line.split() for line in lines], [line.split() for line in target]
    for index in range(len(lines) - len(target) + 1):
        if words[index : index + len(target)] == target_words:
            return f"; line {index + 1} differs only in white space:\n{_excerpt(lines, index, len(target))}"
    anchor = max(target, key=lambda line: len(line.strip())).strip()
    matcher = SequenceMatcher(b=anchor, autojunk=False)
    best, best_ratio = -1, _NEAR_RATIO
    for index, line in enumerate(lines):
        matcher.set_seq1(line.strip()[: 2 * len(anchor) + 20])
        if matcher.real_quick_ratio() > best_ratio and matcher.quick_ratio() > best_ratio:
            ratio = matcher.ratio()
            if ratio > best_ratio:
                best, best_ratio = index, ratio
    return "" if best < 0 else f"; the nearest lines are:\n{_excerpt(lines, max(0, best - 2), 5)}"


def _excerpt(lines: list[str], start: int, count: int) -> str:
    excerpt = lines[start : start + min(count, 20)]
    return "\n".join(f"{number:6}\t{line[:200]}" for number, line in enumerate(excerpt, start + 1))


async def _patch(arguments: JSONObject, bench: Workbench) -> str:
    by_diff = "diff" in arguments
    names = [name for name in ("old", "new", "replace_all") if name in arguments]
    if (by_diff and names) or (not by_diff and not {"old", "new"} <= set(names)):
        raise ToolError("give either old and new, or diff", kind=ToolErrorKind.BAD_ARGUMENTS)
    path = arguments["path"]
    change_text = arguments["diff"] if by_diff else f"-{arguments['old']}\n+{arguments['new']}"
    allowed = await permit_path(bench, path, "change", change_text)
    async with write_lock(bench):
        with os_errors(path):
            data = await bench.sandbox.read_file(allowed, MAX_BYTES + 1)
        text = _decode(data, path)
        change = _change(text, arguments)
        with os_errors(path):
            await bench.sandbox.write_file(allowed, change.text.encode("utf-8"))
    count = len(change.lines)
    where = ", ".join(map(str, change.lines[:10])) + (" …" if count > 10 else "")
    return f"changed {path} at {count} place{'s' if count > 1 else ''} (line {where})"


def _decode(data: bytes, path: str) -> str:
    if len(data) > MAX_BYTES:
        raise ToolError(f"'{path}' is larger than {MAX_BYTES} bytes; change it with a command")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ToolError(
            f"'{path}' is not UTF-8 text (byte {error.start}); change it with a command"
        ) from None


def _change(text: str, arguments: JSONObject) -> TextChange:
    """Applies the change; a file with CRLF throughout keeps its line ends."""
    crlf = "\r\n" in text and text.count("\r\n") == text.count("\n")
    if crlf:
        text = text.replace("\r\n", "\n")
        arguments = {
            name: value.replace("\r\n", "\n") if isinstance(value, str) else value
            for name, value in arguments.items()
        }
    if "diff" in arguments:
        change = apply_diff(text, arguments["diff"])
    else:
        change = replace_exact(
            text, arguments["old"], arguments["new"], replace_all=arguments.get("replace_all", False)
        )
    return TextChange(change.text.replace("\n", "\r\n"), change.lines) if crlf else change


TOOLS = (
    Tool(
        name="patch",
        toolset="file",
        description=(
            "Change a part of a text file. Either give old and new: old must occur exactly once, word for "
            "word, white space included (or set replace_all). Or give diff: the hunks of a unified diff of "
            "this file. If any part does not fit, nothing is changed."
        ),
        parameters=object_schema(
            "path",
            path={
                "type": "string",
                "minLength": 1,
                "description": "Relative to the workspace, or absolute.",
            },
            old={"type": "string", "description": "Text to be replaced."},
            new={"type": "string", "description": "Text to put in its place; may be empty."},
            replace_all={"type": "boolean", "description": "Replace every occurrence of old."},
            diff={"type": "string", "description": "Unified diff, instead of old and new."},
        ),
        handler=_patch,
    ),
)
