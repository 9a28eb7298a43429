"""Shows what a call does: a shell's command as typed, a change of a file as a diff.

Tools are recognised by their arguments, so that those of any agent are shown alike: Claude Code's Bash, Edit
and Write, Codex's shell and apply_patch, those of opencode, pi and Hermes. Anything else is shown as it was
written.
"""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hermes.core import JSONObject
from hermes.web.render.text import FoldedText, fold

_MOST_LINES = 200
_MOST_CHARS = 200_000
_LINE_CHARS = 2000
_COMMANDS = ("command", "cmd")
_SHELLS = ("bash", "sh", "zsh", "/bin/bash", "/bin/sh", "/bin/zsh")
_PATHS = ("file_path", "filePath", "path", "notebook_path")
_OLD = ("old_string", "oldString", "oldText", "old_str", "search")
_NEW = ("new_string", "newString", "newText", "new_str", "replace")
_PATCHES = ("input", "patch", "patchText")
_PATCH_START = "*** Begin Patch"
_FILE_LINES = ("*** Add File: ", "*** Update File: ", "*** Delete File: ", "*** Move to: ")
_WRITERS = ("write", "write_file", "create", "create_file")


class DiffLine(NamedTuple):
    kind: str
    """`add`, `del`, `same` or `hunk`."""
    text: str


class FileDiff(NamedTuple):
    path: str
    lines: tuple[DiffLine, ...]
    hidden_lines: int


@dataclass(frozen=True, slots=True)
class ShownCall:
    command: FoldedText | None = None
    diffs: tuple[FileDiff, ...] = ()
    shown: frozenset[str] = frozenset()
    """The arguments that need no line of their own."""


PLAIN = ShownCall()


def show_call(name: str, arguments: JSONObject) -> ShownCall:
    """The text of a call in place of some of its arguments."""
    for key in _COMMANDS:
        if (command := _command(arguments.get(key))) is not None:
            diffs = tuple(_patch(command)) if _PATCH_START in command else ()
            return ShownCall(None if diffs else fold(command, 30, 4000), diffs, frozenset({key}))
    for key in _PATCHES:
        value = arguments.get(key)
        if isinstance(value, str) and value.lstrip().startswith(_PATCH_START):
            return ShownCall(diffs=tuple(_patch(value)), shown=frozenset({key}))
    path_name = next((key for key in _PATHS if isinstance(arguments.get(key), str)), None)
    path = str(arguments[path_name]) if path_name else ""
    if name.lower() in _WRITERS and isinstance(content := arguments.get("content"), str) and path_name:
        lines = [DiffLine("add", line) for line in content.splitlines()]
        return ShownCall(diffs=(_file(path, lines),), shown=frozenset({path_name, "content"}))
    edits = arguments.get("edits")
    edited = [arguments, *(edits if isinstance(edits, list) else ())]
    changes = [change for item in edited if isinstance(item, dict) and (change := _change(item))]
    if not changes or sum(len(old) + len(new) for old, new in changes) > _MOST_CHARS:
        return PLAIN
    lines = [line for old, new in changes for line in _compare(old, new)]
    return ShownCall(
        diffs=(_file(path, lines[1:]),), shown=frozenset({*(_OLD + _NEW), "edits", path_name or ""})
    )


def _command(value: object) -> str | None:
    """A command line, or a list of words: of `bash -lc TEXT` the text."""
    if isinstance(value, str):
        return value
    if not isinstance(value, list) or not value or not all(isinstance(word, str) for word in value):
        return None
    if len(value) == 3 and value[0] in _SHELLS and value[1].startswith("-"):
        return str(value[2])
    return shlex.join(value)


def _change(item: JSONObject) -> tuple[str, str] | None:
    old = next((item[key] for key in _OLD if isinstance(item.get(key), str)), None)
    new = next((item[key] for key in _NEW if isinstance(item.get(key), str)), None)
    return None if old is None or new is None else (str(old), str(new))


def _compare(old: str, new: str) -> Iterator[DiffLine]:
    """A separator, then the lines of both texts."""
    before, after = old.splitlines(), new.splitlines()
    yield DiffLine("hunk", "")
    for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        if tag == "equal":
            yield from (DiffLine("same", line) for line in before[i1:i2])
        else:
            yield from (DiffLine("del", line) for line in before[i1:i2])
            yield from (DiffLine("add", line) for line in after[j1:j2])


def _patch(text: str) -> Iterator[FileDiff]:
    """The files of a patch in the form of Codex's apply_patch."""
    path: str | None = None
    lines: list[DiffLine] = []
    for line in text.splitlines():
        head = next((start for start in _FILE_LINES if line.startswith(start)), None)
        if head is not None:
            if path is not None:
                yield _file(path, lines)
            path, lines = line[4:], []
        elif path is not None and not line.startswith("*** "):
            kind = {"+": "add", "-": "del", "@": "hunk"}.get(line[:1], "same")
            lines.append(DiffLine(kind, line if kind == "hunk" else line[1:]))
        elif line.startswith("*** End Patch"):
            break
    if path is not None:
        yield _file(path, lines)


def _file(path: str, lines: list[DiffLine]) -> FileDiff:
    shown = tuple(line._replace(text=line.text[:_LINE_CHARS]) for line in lines[:_MOST_LINES])
    return FileDiff(path[:500], shown, max(0, len(lines) - _MOST_LINES))
