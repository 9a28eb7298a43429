"""Groups that are already in the form they are stored in, recognised without parsing them.

Nearly every group an environment sends is plain arrays of numbers. One regular expression decides, in a
single pass that makes no Python object and lets other threads run, whether a body is such a group: valid
JSON, known keys, integers where integers belong, floats written as floats (so that a reader gets the types
it would get after coercion) and too short to overflow. What it does not accept is not wrong: it is parsed.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

from hermes.rollouts.wire import MAX_LIST, ScoredData

_SPACE = rb"[ \t\r\n]*"
_WHOLE = rb"-?(?:0|[1-9][0-9]{0,17})"
_FLOAT = _WHOLE + rb"(?:\.[0-9]{1,30}(?:[eE][-+]?[0-9]{1,2})?|[eE][-+]?[0-9]{1,2})"
_EMPTY = rb"\{" + _SPACE + rb"\}"


class Incoming(NamedTuple):
    """A group as it was sent, checked and made uniform."""

    env_id: int | None
    size: int
    """Sequences in it."""
    payload: bytes
    """A JSON object with every key of `ScoredData`."""


def recognise(body: bytes) -> Incoming | None:
    """The group in `body`, or None if it has to be parsed. Safe to call in a thread."""
    return _read(body) if _pattern(many=False).fullmatch(body) else None


def recognise_list(body: bytes) -> list[Incoming] | None:
    """The groups in the list `body`, or None if it has to be parsed."""
    count = body.count(b"{")
    if count > MAX_LIST or count != body.count(b'"tokens"') or not _pattern(many=True).fullmatch(body):
        return None  # more objects than groups: some are within groups
    groups: list[Incoming] = []
    start = body.find(b"{")
    while start >= 0:
        end = body.index(b"}", start) + 1
        group = _read(body[start:end])
        if group is None:
            return None
        groups.append(group)
        start = body.find(b"{", end)
    return groups


def _read(body: bytes) -> Incoming | None:
    """A group that matches the pattern; None if a key comes twice or one that is needed not at all."""
    values = _values(body)
    if values is None or not {b"tokens", b"masks", b"scores"} <= values.keys():
        return None
    start, end = values[b"tokens"]
    env_id = body[slice(*values[b"env_id"])].strip(b" \t\r\n:,}") if b"env_id" in values else b"null"
    return Incoming(
        env_id=None if env_id == b"null" else int(env_id),
        size=_lists(body, start, end),
        payload=b"".join((memoryview(body)[: body.rindex(b"}")], _absent(frozenset(values)))),
    )


def _lists(body: bytes, start: int, end: int) -> int:
    """How many lists are in the list at `start`. They are few and long, so finding beats counting."""
    count = -1
    while (start := body.find(b"[", start, end) + 1) > 0:
        count += 1
    return count


def _values(body: bytes) -> dict[bytes, tuple[int, int]] | None:
    """Where each key's value lies; the only strings are keys. None if a key comes twice."""
    values: dict[bytes, tuple[int, int]] = {}
    opening = body.find(b'"')
    while opening >= 0:
        closing = body.index(b'"', opening + 1)
        key = body[opening + 1 : closing]
        if key in values:
            return None
        opening = body.find(b'"', closing + 1)
        values[key] = (closing + 1, opening if opening >= 0 else len(body))
    return values


@functools.lru_cache(maxsize=64)
def _absent(present: frozenset[bytes]) -> bytes:
    keys = [name.encode() for name in ScoredData.model_fields]
    return b"".join(b',"%s":null' % key for key in keys if key not in present) + b"}"


@functools.cache
def _pattern(*, many: bool) -> Any:
    import re2  # type: ignore[import-untyped]

    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    options.never_capture = True
    options.max_mem = 32 << 20
    return re2.compile(_SPACE + _list(_object()) + _SPACE if many else _SPACE + _object() + _SPACE, options)


def _object() -> bytes:
    whole, number = _list(_list(_WHOLE)), _list(_list(_FLOAT))
    field = _either(
        _pair("tokens|masks", whole),
        _pair("scores", _list(_FLOAT)),
        _pair("advantages|ref_logprobs|inference_logprobs", _either(rb"null", number)),
        _pair("distill_token_ids", _either(rb"null", _list(whole))),
        _pair("distill_logprobs", _either(rb"null", _list(number))),
        _pair("env_id", _either(rb"null", _WHOLE)),
        _pair("messages|images", _either(rb"null", rb"\[" + _SPACE + rb"\]")),
        _pair("overrides", _either(rb"null", _list(_EMPTY))),
        _pair("generation_params|group_overrides", _either(rb"null", _EMPTY)),
    )
    return rb"\{" + _separated(field) + rb"\}"


def _either(*alternatives: bytes) -> bytes:
    return rb"(?:" + rb"|".join(alternatives) + rb")"


def _separated(item: bytes) -> bytes:
    return _SPACE + item + _SPACE + rb"(?:," + _SPACE + item + _SPACE + rb")*"


def _list(item: bytes) -> bytes:
    return rb"\[" + _either(_SPACE, _separated(item)) + rb"\]"


def _pair(names: str, value: bytes) -> bytes:
    return rb'"(?:' + names.encode() + rb')"' + _SPACE + rb":" + _SPACE + value
