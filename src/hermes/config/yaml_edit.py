"""Changes to one key of a YAML text that leave the other lines as they are: comments, order, quotes.

A change replaces, adds or removes the lines of a key. The result is parsed and compared with the data that
the change should have produced. Where it differs (a section in braces, for example), the section around the
key is written anew as a block; a file that does not survive that either is refused, never half edited.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import NamedTuple

from hermes.config import yaml_file
from hermes.core import JSON, JSONObject
from hermes.errors import ConfigError

_PLAIN = re.compile(r"[A-Za-z0-9_./][A-Za-z0-9_./@+-]*(:[A-Za-z0-9_./@+-]+)*")
"""Texts that need no quotes, unless they mean something else (`1`, `true`)."""
_COMMENT = re.compile(r"\s+#[^\n]*")
_ESCAPES = {"\n": "\\n", "\t": "\\t", '"': '\\"', "\\": "\\\\"}

Path = tuple[str, ...]


def with_value(text: str, path: Path, value: JSON, where: str) -> str:
    """The text with the key set. Sections on the way are created; a mapping is written as a block."""
    expected = _data(text, where)
    section = expected
    for part in path[:-1]:
        if not isinstance(section.get(part), dict):
            section[part] = {}
        section = section[part]
    section[path[-1]] = value
    return _written(_Lines(text, where), path, expected, where)


def without(text: str, path: Path, where: str) -> str:
    """The text less the key, and less the sections that would be left empty; unchanged if it is not there."""
    expected = _data(text, where)
    sections: list[JSONObject] = [expected]
    for part in path[:-1]:
        section = sections[-1].get(part)
        if not isinstance(section, dict):
            return text
        sections.append(section)
    if path[-1] not in sections[-1]:
        return text
    depth = len(path) - 1
    while depth > 0 and len(sections[depth]) == 1:
        depth -= 1
    del sections[depth][path[depth]]
    lines = _Lines(text, where)
    removed = lines.without(path[: depth + 1])
    if removed is not None and _means(removed, expected, where):
        return removed
    return _written(lines, path[:depth], expected, where)


def _written(lines: _Lines, path: Path, expected: JSONObject, where: str) -> str:
    """The text with what `path` should have; a section around it is written where that is not enough."""
    for depth in range(len(path), 0, -1):
        value: JSON = expected
        for part in path[:depth]:
            value = value[part] if isinstance(value, dict) else None
        changed = lines.with_value(path[:depth], value)
        if changed is not None and _means(changed, expected, where):
            return changed
    raise ConfigError(f"{where} is written in a way that cannot be changed here", "use 'hermes config edit'")


def _data(text: str, where: str) -> JSONObject:
    """The file's data as a tree: by way of JSON, so that an alias is a copy and not the same object."""
    data: JSONObject = json.loads(json.dumps(yaml_file.parse(text, where).data))
    return data


def _means(text: str, expected: JSONObject, where: str) -> bool:
    try:
        return yaml_file.parse(text, where).data == expected
    except ConfigError:
        return False


class _Place(NamedTuple):
    line: int
    column: int


class _Lines:
    """The lines of a text, and where its keys are."""

    def __init__(self, text: str, where: str) -> None:
        self._lines = [f"{line}\n" for line in text.split("\n")]
        if self._lines[-1] == "\n":
            self._lines.pop()
        document = yaml_file.parse(text, where)
        self._data = document.data
        self._places: dict[Path, _Place] = {}
        for path, location in document.locations.items():
            _, line, column = location.rsplit(":", 2)
            self._places[path] = _Place(int(line) - 1, int(column) - 1)

    def with_value(self, path: Path, value: JSON) -> str | None:
        """The text with the key's lines replaced or added; None: its place is not a block of lines."""
        if path in self._places:
            start, column = self._places[path]
            first, *rest = _rendered(path[-1], value, column)
            first = first.rstrip("\n") + _comment_beside(self._lines[start]) + "\n"
            return self._replaced(path, [first, *rest])
        if len(path) == 1:
            return "".join([*self._lines, *_rendered(path[0], value, 0)])
        children = [
            key_place
            for key, key_place in self._places.items()
            if key[:-1] == path[:-1] and key_place.line > self._places[path[:-1]].line
        ]
        if not children:
            return None
        end = self._end(path[:-1])
        return "".join(
            [*self._lines[:end], *_rendered(path[-1], value, children[0].column), *self._lines[end:]]
        )

    def without(self, path: Path) -> str | None:
        return self._replaced(path, [])

    def _replaced(self, path: Path, lines: Sequence[str]) -> str | None:
        start, column = self._places[path]
        if self._lines[start][:column].strip():
            return None  # within braces, or in a list
        end = self._end(path)
        old: JSON = self._data
        for part in path:
            old = old[part] if isinstance(old, dict) else None
        below = [] if isinstance(old, str) else self._lines[start + 1 : end]
        comments = [line for line in below if line.lstrip().startswith("#")]
        return "".join([*self._lines[:start], *lines, *comments, *self._lines[end:]])

    def _end(self, path: Path) -> int:
        """The line after the key's value, without the comments of what follows."""
        start, column = self._places[path]
        ends = (
            key_place.line
            for key_place in self._places.values()
            if key_place.line > start and key_place.column <= column
        )
        end = min(ends, default=len(self._lines))
        while end > start + 1 and _is_above(self._lines[end - 1], column):
            end -= 1
        return end


def _is_above(line: str, column: int) -> bool:
    """Whether the line is empty or a comment that is not indented as the value is."""
    text = line.lstrip(" ")
    return not text.strip() or (text.startswith("#") and len(line) - len(text) <= column)


def _comment_beside(line: str) -> str:
    """The comment at the end of a line, with the spaces before it."""
    for match in _COMMENT.finditer(line):
        before = line[: match.start()]
        if before.count('"') % 2 == 0 and before.count("'") % 2 == 0:
            return match[0]
    return ""


def _rendered(key: str, value: JSON, column: int) -> list[str]:
    head = " " * column + _inline(key) + ":"
    if not isinstance(value, dict) or not value:
        return [f"{head} {_inline(value)}\n"]
    return [f"{head}\n", *(line for name in value for line in _rendered(name, value[name], column + 2))]


def _inline(value: JSON) -> str:
    """The value on one line; JSON is YAML, but plain texts need no quotes."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_inline(key)}: {_inline(member)}" for key, member in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    if not isinstance(value, str):
        return json.dumps(value)
    if _PLAIN.fullmatch(value) and yaml_file.parse_scalar(value, "") == value:
        return value
    escaped = (_ESCAPES.get(char, char if char.isprintable() else f"\\U{ord(char):08x}") for char in value)
    return '"' + "".join(escaped) + '"'
