"""The `.env` file: NAME=VALUE lines, edited in place so that comments and order survive.

Accepted: blank lines, `#` comments (also after a value, with a space before), an `export` prefix,
'single quotes' (verbatim) and "double quotes" (with \\n, \\r, \\t, \\", \\\\, \\$ and \\`). A value is one
line. Nothing is expanded: `$NAME` is five characters. Anything else in the file, including a
name set twice, is an error that names the line and never the value.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hermes.errors import ConfigError

_HEAD = re.compile(r"[ \t]*(?:export[ \t]+)?([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*")
_DOUBLE = re.compile(r'"((?:[^"\\]|\\.)*)"')
_SINGLE = re.compile(r"'([^']*)'")
_BARE = re.compile(r"(.*?)(?:[ \t]+#.*)?\s*$")
_AFTER = re.compile(r"\s*(?:#.*)?")
_ESCAPE = re.compile(r"\\(.)")
_PLAIN = re.compile(r"[A-Za-z0-9_./:@%+,=-]*")
_UNESCAPED = {"n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "$": "$", "`": "`"}
_ESCAPED = {value: "\\" + letter for letter, value in _UNESCAPED.items()}
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class _Line:
    """One line in three parts: `head + written value + tail`; a line without a name is all head."""

    head: str
    name: str | None = None
    value: str = ""
    tail: str = ""


def parse(text: str, where: str) -> dict[str, str]:
    """The variables, in the file's order; `where` names the file in errors."""
    return {line.name: line.value for line in _lines(text, where) if line.name is not None}


def with_value(text: str, name: str, value: str, where: str) -> str:
    """The text with `name` set: its line changed in place, or a new line at the end."""
    if not NAME.fullmatch(name):
        raise ConfigError(f"'{name}' is not a variable name", "use letters, digits and underscores")
    if "\0" in value:
        raise ConfigError(f"the value of {name} contains a NUL character", "paste the value again")
    rows = text.split("\n")
    for index, line in enumerate(_lines(text, where)):
        if line.name == name:
            tail = f" {line.tail}" if line.tail.startswith("#") else line.tail
            rows[index] = line.head + _write(value) + tail
            return "\n".join(rows)
    end = "\n" if text and not text.endswith("\n") else ""
    return f"{text}{end}{name}={_write(value)}\n"


def without(text: str, name: str, where: str) -> str:
    """The text less the line that sets `name`; unchanged if none does."""
    lines = _lines(text, where)
    rows = text.split("\n")
    return "\n".join(row for row, line in zip(rows, lines, strict=True) if line.name != name)


def _lines(text: str, where: str) -> list[_Line]:
    lines: list[_Line] = []
    line_numbers: dict[str, int] = {}
    for number, row in enumerate(text.split("\n"), start=1):
        line = _parse_line(row, f"{where}:{number}")
        if line.name is not None:
            if line.name in line_numbers:
                raise ConfigError(
                    f"{where}:{number}: {line.name} is already set on line {line_numbers[line.name]}",
                    "keep one of the two lines",
                )
            line_numbers[line.name] = number
        lines.append(line)
    return lines


def _parse_line(row: str, location: str) -> _Line:
    if not row.strip() or row.lstrip().startswith("#"):
        return _Line(row)
    head = _HEAD.match(row)
    if head is None or "\0" in row:
        raise ConfigError(f"{location}: expected NAME=VALUE", "repair or remove the line")
    rest = row[head.end() :]
    if rest.startswith("#") and head.group().endswith((" ", "\t")):
        return _Line(head.group(), head[1], "", rest)
    if not rest.startswith(('"', "'")):
        bare = _BARE.match(rest)
        assert bare is not None  # the pattern matches every line
        return _Line(head.group(), head[1], bare[1], rest[bare.end(1) :])
    quoted = (_DOUBLE if rest[0] == '"' else _SINGLE).match(rest)
    if quoted is None:
        raise ConfigError(f"{location}: the value of {head[1]} has no closing quote", "repair the line")
    if not _AFTER.fullmatch(rest, quoted.end()):
        raise ConfigError(
            f"{location}: unexpected text after the value of {head[1]}", "quote the whole value"
        )
    value = _ESCAPE.sub(_unescape, quoted[1]) if rest[0] == '"' else quoted[1]
    return _Line(head.group(), head[1], value, rest[quoted.end() :])


def _unescape(match: re.Match[str]) -> str:
    return _UNESCAPED.get(match[1], match[0])


def _write(value: str) -> str:
    """The value as other readers of such files (a shell, docker) understand it too."""
    if _PLAIN.fullmatch(value):
        return value
    if "'" not in value and not any(letter in value for letter in "\n\r"):
        return f"'{value}'"
    return '"' + "".join(_ESCAPED.get(letter, letter) for letter in value) + '"'
