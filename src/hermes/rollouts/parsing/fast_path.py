"""Validates groups that can be stored exactly as they were sent, without parsing them.

Nearly every group that an environment sends consists of arrays of numbers and a few flat objects about each
rollout (`overrides`, `generation_params`, `group_overrides`). One regular expression checks, in a single pass
that creates no Python objects and releases the interpreter, whether a body is such a group: valid JSON, known
keys, integers where integers are expected, floats written as floats (so that a reader gets the types it would
get after coercion) and too short to overflow. Values of flat objects are strings, numbers, booleans, null,
and lists of those; strings are ASCII, and any escape but half a surrogate pair is allowed. A body that does
not match is not invalid: it is parsed with the full schema.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from hermes.rollouts.schema import MAX_LIST, ScoredData

_BLANKS = b" \t\r\n"
_SPACE = rb"[" + _BLANKS + rb"]*"
_INTEGER = rb"-?(?:0|[1-9][0-9]{0,17})"
_FLOAT = _INTEGER + rb"(?:\.[0-9]{1,30}(?:[eE][-+]?[0-9]{1,2})?|[eE][-+]?[0-9]{1,2})"
_ESCAPE = rb'\\(?:["\\/bfnrt]|u(?:[0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}))'
_TEXT = rb'"(?:[ !#-\[\]-~]|' + _ESCAPE + rb')*"'
_FREE_FORM = (b"overrides", b"generation_params", b"group_overrides")
"""Keys whose values hold strings."""


class IncomingGroup(NamedTuple):
    """A posted group, validated, with every key of the schema."""

    env_id: int | None
    size: int
    """Sequences in it."""
    payload: bytes
    """A JSON object with every key of `ScoredData`."""


def match_group(body: bytes) -> IncomingGroup | None:
    """The group in `body`, or None if it has to be parsed. Thread-safe."""
    pattern = _pattern(_SPACE + _object(flat_objects=True) + _SPACE)
    return _read_group(body) if pattern.fullmatch(body) else None


def match_list(body: bytes) -> list[IncomingGroup] | None:
    """The groups in the list `body`, or None if it has to be parsed."""
    numbers_only = _pattern(_SPACE + _list(_object(flat_objects=False)) + _SPACE).fullmatch(body)
    find_end = _end_by_brace if numbers_only else _end_by_match
    groups: list[IncomingGroup] = []
    end, separator = 0, b"["
    while (start := body.find(b"{", end)) >= 0:
        if body[end:start].strip(_BLANKS) != separator or len(groups) == MAX_LIST:
            return None
        end, separator = find_end(body, start), b","
        group = _read_group(body[start:end]) if end > start else None
        if group is None:
            return None
        groups.append(group)
    rest = body[end:].translate(None, _BLANKS)
    return groups if rest == (b"]" if groups else b"[]") else None


def _end_by_brace(body: bytes, start: int) -> int:
    """Where the group at `start` ends, in a list that holds no other objects and no strings but keys."""
    return body.index(b"}", start) + 1


def _end_by_match(body: bytes, start: int) -> int:
    """Where the group at `start` ends; `start` itself if it has to be parsed."""
    match = _pattern(_object(flat_objects=True)).match(body, start)
    end: int = match.end() if match else start
    return end


def _read_group(body: bytes) -> IncomingGroup | None:
    """A group that matches the pattern; None if a key is repeated or a required one is missing."""
    values = _value_spans(body)
    if values is None or not {b"tokens", b"masks", b"scores"} <= values.keys():
        return None
    start, end = values[b"tokens"]
    env_id = body[slice(*values[b"env_id"])].strip(_BLANKS + b":,}") if b"env_id" in values else b"null"
    return IncomingGroup(
        env_id=None if env_id == b"null" else int(env_id),
        size=_count_lists(body, start, end),
        payload=b"".join((memoryview(body)[: body.rindex(b"}")], _null_fields(frozenset(values)))),
    )


def _count_lists(body: bytes, start: int, end: int) -> int:
    """How many lists are in the list at `start`. They are few and long, so `find` is faster than `count`."""
    count = -1
    while (start := body.find(b"[", start, end) + 1) > 0:
        count += 1
    return count


def _value_spans(body: bytes) -> dict[bytes, tuple[int, int]] | None:
    """(start, end) of each key's value, up to the next key. None if a key is repeated."""
    values: dict[bytes, tuple[int, int]] = {}
    opening = body.find(b'"')
    while opening >= 0:
        closing = body.index(b'"', opening + 1)
        key = body[opening + 1 : closing]
        if key in values:
            return None
        after = closing + 1
        if key in _FREE_FORM:  # strings in its value are not keys of the group
            after = _pattern(_free_form()).match(body, after).end()
        opening = body.find(b'"', after)
        values[key] = (closing + 1, opening if opening >= 0 else len(body))
    return values


@functools.lru_cache(maxsize=64)
def _null_fields(present: frozenset[bytes]) -> bytes:
    keys = [name.encode() for name in ScoredData.model_fields]
    return b"".join(b',"%s":null' % key for key in keys if key not in present) + b"}"


@functools.cache
def _pattern(expression: bytes) -> Any:
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.max_mem = 32 << 20
    return re2.compile(expression, options)


@functools.cache
def _object(*, flat_objects: bool) -> bytes:
    """A group; without `flat_objects`, one whose only strings are its keys and that contains no object."""
    integers, floats = _list(_list(_INTEGER)), _list(_list(_FLOAT))
    field = _either(
        _pair("tokens|masks", integers),
        _pair("scores", _list(_FLOAT)),
        _pair("advantages|ref_logprobs|inference_logprobs", _either(rb"null", floats)),
        _pair("distill_token_ids", _either(rb"null", _list(integers))),
        _pair("distill_logprobs", _either(rb"null", _list(floats))),
        _pair("env_id", _either(rb"null", _INTEGER)),
        _pair("messages|images", _either(rb"null", rb"\[" + _SPACE + rb"\]")),
        _pair("overrides", _either(rb"null", _list(_flat_object())) if flat_objects else rb"null"),
        _pair("generation_params|group_overrides", _flat_object_or_null() if flat_objects else rb"null"),
    )
    return rb"\{" + _separated(field) + rb"\}"


def _flat_object_or_null() -> bytes:
    return _either(rb"null", _flat_object())


@functools.cache
def _free_form() -> bytes:
    """The colon and the value after a key of `_FREE_FORM`."""
    return _SPACE + rb":" + _SPACE + _either(rb"null", _flat_object(), _list(_flat_object()))


def _flat_object() -> bytes:
    """An object of scalars and lists of scalars."""
    scalar = _either(_TEXT, _FLOAT, _INTEGER, rb"true", rb"false", rb"null")
    field = _TEXT + _SPACE + rb":" + _SPACE + _either(scalar, _list(scalar))
    return rb"\{" + _either(_SPACE, _separated(field)) + rb"\}"


def _either(*alternatives: bytes) -> bytes:
    return rb"(?:" + rb"|".join(alternatives) + rb")"


def _separated(item: bytes) -> bytes:
    return _SPACE + item + _SPACE + rb"(?:," + _SPACE + item + _SPACE + rb")*"


def _list(item: bytes) -> bytes:
    return rb"\[" + _either(_SPACE, _separated(item)) + rb"\]"


def _pair(names: str, value: bytes) -> bytes:
    return rb'"(?:' + names.encode() + rb')"' + _SPACE + rb":" + _SPACE + value
