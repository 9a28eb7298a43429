"""Reads fields of a server's JSON, which may have the wrong type: the value, or its type's empty value."""

from __future__ import annotations

import json

from hermes.core import JSON, JSONObject


def as_text(value: JSON) -> str:
    return value if isinstance(value, str) else ""


def as_count(value: JSON) -> int:
    return value if type(value) is int and value > 0 else 0


def as_list(value: JSON) -> list[JSON]:
    return value if isinstance(value, list) else []


def as_object(value: JSON) -> JSONObject:
    return value if isinstance(value, dict) else {}


def as_objects(value: JSON) -> list[JSONObject]:
    return [item for item in as_list(value) if isinstance(item, dict)]


def as_parts(value: JSON) -> list[JSONObject]:
    """The parts of a message's content, which may be a text, or a list in which texts stand between parts."""
    items = value if isinstance(value, list) else [value]
    parts = [{"type": "text", "text": item} if isinstance(item, str) else item for item in items]
    return [part for part in parts if isinstance(part, dict)]


def finite(value: JSONObject) -> JSONObject:
    """The same with null for NaN and infinities, which some servers send and JSON does not allow."""
    try:
        json.dumps(value, allow_nan=False)
    except ValueError:
        cleaned: JSONObject = json.loads(json.dumps(value), parse_constant=lambda name: None)
        return cleaned
    return value
