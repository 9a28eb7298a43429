"""Module patterns of an adapter's configuration (`alpha_pattern`), matched in time linear in the path.

PEFT reads them as regular expressions, and an adapter may come from anyone: a regular expression can run for
hours. Read here are names with `.`, `.*`, `.+`, `\\d`, `\\w`, [classes], escaped characters, `*`, `+` and `?`
after one of these, anchors at the ends, and (one|level|of|alternatives). Anything else is an error.
"""

from __future__ import annotations

import itertools
import re
import string
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from hermes.engine.types import EngineUserError

_MAX_CHARS = 500
_MAX_ALTERNATIVES = 64
_CLASS = re.compile(r"\[(\^?)((?:[\w.-]|\\.)+)\]")
_WORD = string.ascii_letters + string.digits + "_"
_ESCAPES = {"d": string.digits, "w": _WORD}


@dataclass(frozen=True, slots=True)
class _Unit:
    accepts: Callable[[str], bool]
    repeat: str
    """"" once, "?" at most once, "*" any number, "+" at least once."""


def matches(pattern: str, path: str) -> bool:
    """Whether the pattern matches the path, or the path's end after a dot. EngineUserError: unreadable."""
    if len(pattern) > _MAX_CHARS:
        raise _unreadable(pattern)
    anchored = pattern.startswith("^")
    body = pattern.removeprefix("^").removesuffix("$")
    starts = [0] if anchored else [0, *(index + 1 for index, char in enumerate(path) if char == ".")]
    return any(_matches_whole(_units(text, pattern), path, starts) for text in _alternatives(body, pattern))


def _alternatives(body: str, pattern: str) -> Iterator[str]:
    """The pattern without its groups, once for each choice."""
    if "(" not in body:
        yield from body.split("|") if "|" in body else [body]
        return
    parts = re.split(r"\((?:\?:)?([^()]*)\)", body)
    if any(char in text for text in parts[::2] for char in "()|") or any(
        text[:1] in "*+?{" for text in parts[1:] if text
    ):
        raise _unreadable(pattern)
    choices = [[text] if index % 2 == 0 else text.split("|") for index, text in enumerate(parts)]
    for number, choice in enumerate(itertools.product(*choices)):
        if number == _MAX_ALTERNATIVES:
            raise _unreadable(pattern)
        yield "".join(choice)


def _units(text: str, pattern: str) -> list[_Unit]:
    units: list[_Unit] = []
    position = 0
    while position < len(text):
        accepts, position = _atom(text, position, pattern)
        repeat = text[position] if position < len(text) and text[position] in "*+?" else ""
        position += len(repeat)
        units.append(_Unit(accepts, repeat))
    return units


def _atom(text: str, position: int, pattern: str) -> tuple[Callable[[str], bool], int]:
    """The test that one character of the path must pass, and where the next atom begins."""
    char = text[position]
    if char == ".":
        return (lambda _: True), position + 1
    if char == "[":
        char_class = _CLASS.match(text, position)
        if char_class is None:
            raise _unreadable(pattern)
        members, negated = _members(char_class.group(2)), bool(char_class.group(1))
        return (lambda value: (value in members) is not negated), char_class.end()
    if char == "\\":
        escaped = text[position + 1 : position + 2]
        if not escaped or (escaped.isalnum() and escaped not in _ESCAPES):
            raise _unreadable(pattern)
        members = frozenset(_ESCAPES.get(escaped, escaped))
        return members.__contains__, position + 2
    if char in "*+?{}()|^$":
        raise _unreadable(pattern)
    return char.__eq__, position + 1


def _members(text: str) -> frozenset[str]:
    """The characters of a class such as a-z0-9_."""
    plain = re.sub(r"\\([dw])", lambda match: _ESCAPES[match.group(1)], text)
    plain = re.sub(r"\\(.)", r"\1", plain)
    members = set(plain)
    for match in re.finditer(r"(\w)-(\w)", plain):
        members |= {chr(code) for code in range(ord(match.group(1)), ord(match.group(2)) + 1)}
    return frozenset(members)


def _matches_whole(units: Sequence[_Unit], path: str, starts: Sequence[int]) -> bool:
    """Follows all ways through the pattern at once: no input makes it go back."""
    reached = set(starts)
    for unit in units:
        following = set(reached) if unit.repeat in ("?", "*") else set()
        frontier = reached
        while frontier:
            frontier = {
                index + 1 for index in frontier if index < len(path) and unit.accepts(path[index])
            } - following
            following |= frontier
            if unit.repeat not in ("*", "+"):
                break
        reached = following
    return len(path) in reached


def _unreadable(pattern: str) -> EngineUserError:
    return EngineUserError(
        f"the module pattern {pattern[:100]!r} cannot be read",
        "use module names, '.', '.*', '\\\\d+', [classes] and (one|level|of|alternatives)",
    )
