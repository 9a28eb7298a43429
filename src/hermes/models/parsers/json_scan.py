"""Reads JSON values inside a text, with the exact source text of each value.

JSON is strict (no NaN, no raw line breaks in strings), and every failure, however hostile the input, is a
`MalformedCallError`.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import NoReturn

from hermes.core import JSON
from hermes.models.parsers.base import MalformedCallError

_SPACE = re.compile(r"[ \t\r\n]*")
_BRACKET_OR_STRING = re.compile(r'"(?:[^"\\]++|\\.)*+"|["{}\[\]]', re.DOTALL)


def _reject_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text} is out of range")
    return value


_DECODER = json.JSONDecoder(parse_constant=_reject_constant, parse_float=_finite)


@dataclass(frozen=True, slots=True)
class Value:
    value: JSON
    start: int
    end: int


def skip_space(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at


def decode_at(text: str, at: int) -> Value:
    """The JSON value that begins exactly at `at`."""
    try:
        value, end = _DECODER.raw_decode(text, at)
    except json.JSONDecodeError as error:
        raise MalformedCallError(f"invalid JSON: {error.msg}", stopped_at=error.pos) from None
    except ValueError as error:
        raise MalformedCallError(f"invalid JSON: {error}", stopped_at=at) from None
    except RecursionError:
        raise MalformedCallError("invalid JSON: nested too deeply", stopped_at=at) from None
    return Value(value, at, end)


def decode(text: str) -> Value | None:
    """The whole text as one JSON value, white space around it allowed; None if it is not one."""
    try:
        value = decode_at(text, skip_space(text, 0))
    except MalformedCallError:
        return None
    return value if skip_space(text, value.end) == len(text) else None


def is_object(text: str) -> bool:
    decoded = decode(text)
    return decoded is not None and isinstance(decoded.value, dict)


def decode_object_at(text: str, at: int, name: str) -> Value:
    """The JSON object at `at`: the arguments of a call whose name is outside the JSON."""
    try:
        arguments = decode_at(text, at)
    except MalformedCallError as error:
        raise _locate(error, text, at, name) from None
    if not isinstance(arguments.value, dict):
        raise MalformedCallError(_not_an_object(arguments.value), name=name, ends_at=arguments.end)
    return arguments


def members_at(text: str, at: int) -> tuple[dict[str, Value], int]:
    """The members of the object at `at`, each with its position in the text, and where the object ends.

    If a member is malformed, the error has the call's name if it was read before.
    """
    members: dict[str, Value] = {}
    if not text.startswith("{", at):
        raise MalformedCallError("invalid JSON: expected an object", stopped_at=at, doubtful_from=at)
    here = skip_space(text, at + 1)
    if text.startswith("}", here):
        return members, here + 1
    try:
        while True:
            key, here = _key_at(text, here)
            members[key] = decode_at(text, here)
            here = skip_space(text, members[key].end)
            if text.startswith("}", here):
                return members, here + 1
            if not text.startswith(",", here):
                raise MalformedCallError("invalid JSON: expected ',' or '}'", stopped_at=here)
            here = skip_space(text, here + 1)
    except MalformedCallError as error:
        raise _locate(error, text, at, _name_in(members)) from None


def _locate(error: MalformedCallError, text: str, at: int, name: str) -> MalformedCallError:
    """The same error with its position in the JSON that begins at `at`."""
    return MalformedCallError(
        f"{error} (character {error.stopped_at - at + 1})",
        name=name,
        stopped_at=error.stopped_at,
        doubtful_from=_doubtful_from(str(error), text, at, error.stopped_at),
    )


def _doubtful_from(reason: str, text: str, at: int, stopped_at: int) -> int:
    if "Unterminated string" in reason:
        return stopped_at  # which is where the string begins
    quote = text.rfind('"', at, stopped_at)
    if "control character" in reason or "escape" in reason:
        return max(at, quote)
    if quote >= 0 and not text[quote + 1 : stopped_at].strip():
        return max(
            at, text.rfind('"', at, quote)
        )  # closed by a quote that may be the beginning of another string
    return stopped_at


def _key_at(text: str, at: int) -> tuple[str, int]:
    if not text.startswith('"', at):
        raise MalformedCallError("invalid JSON: expected a member name in double quotes", stopped_at=at)
    key = decode_at(text, at)
    here = skip_space(text, key.end)
    if not text.startswith(":", here):
        raise MalformedCallError("invalid JSON: expected ':'", stopped_at=here)
    return key.value, skip_space(text, here + 1)


def _name_in(members: dict[str, Value]) -> str:
    name = members.get("name")
    return name.value if name is not None and isinstance(name.value, str) else ""


def call_parts(text: str, at: int, *keys: str) -> tuple[str, str, int]:
    """Name, argument text and end of the call object at `at`; the arguments are under one of `keys`."""
    members, end = members_at(text, at)
    name = _name_in(members)
    if not name:
        raise MalformedCallError('the call has no "name"', ends_at=end)
    arguments = next((members[key] for key in keys if key in members), None)
    if arguments is None and members.keys() - {"name", "id", "type"}:
        raise MalformedCallError(f'the call has no "{keys[0]}"', name=name, ends_at=end)
    if arguments is None or arguments.value is None:
        return name, "{}", end
    if isinstance(arguments.value, dict):
        return name, text[arguments.start : arguments.end], end
    if isinstance(arguments.value, str) and is_object(arguments.value):
        return name, arguments.value, end  # the arguments as a JSON string
    raise MalformedCallError(_not_an_object(arguments.value), name=name, ends_at=end)


def _not_an_object(value: JSON) -> str:
    return f"the arguments must be a JSON object, not {type(value).__name__}"


def balanced_end(text: str, at: int, limit: int) -> int | None:
    """Where the bracket at `at` closes, strings skipped; None if it does not before `limit`."""
    expected: list[str] = []
    for match in _BRACKET_OR_STRING.finditer(text, at, limit):
        token = match[0]
        if token in "{[":
            expected.append("}" if token == "{" else "]")
        elif token in "}]":
            if not expected or expected.pop() != token:
                return None
            if not expected:
                return match.end()
        elif token == '"':
            return None  # a string that never ends
    return None
