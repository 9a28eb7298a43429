"""The one alias for 'any JSON value', and a reader of objects; in core, `Any` is allowed only here."""

from __future__ import annotations

import json
from typing import Any, TypeAlias

JSON: TypeAlias = Any
JSONObject: TypeAlias = dict[str, Any]


def parse_object(text: str | bytes) -> JSONObject:
    """ValueError: no JSON, nested more deeply than Python reads, or no object."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if not isinstance(value, dict):
        raise ValueError("it is not a JSON object")
    return value
