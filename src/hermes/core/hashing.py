"""Content addresses: equal content has equal hash, on every machine and in every version."""

from __future__ import annotations

import hashlib
import json

from hermes.core.json import JSON


def canonical_json(value: JSON) -> str:
    """One text per value: sorted keys, no spaces, unescaped Unicode, no NaN.

    Lone surrogates (possible in model output) are escaped, since they have no UTF-8 form.
    """
    return _dump(value, sort_keys=True)


def ordered_json(value: JSON) -> str:
    """Like `canonical_json`, with the keys in the order they have: for what a model reads as text."""
    return _dump(value, sort_keys=False)


def content_hash(text: str) -> str:
    """32 hex digits of BLAKE2b over the UTF-8 text."""
    return hashlib.blake2b(text.encode("utf-8"), digest_size=16).hexdigest()


def _dump(value: JSON, *, sort_keys: bool) -> str:
    text = (_SORTED if sort_keys else _ORDERED).encode(value)
    if text.isascii() or _encodable(text):
        return text
    return json.dumps(value, sort_keys=sort_keys, separators=(",", ":"), ensure_ascii=True, allow_nan=False)


_SORTED, _ORDERED = (
    json.JSONEncoder(sort_keys=sort_keys, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
    for sort_keys in (True, False)
)


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
