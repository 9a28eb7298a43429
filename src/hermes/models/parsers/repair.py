"""Mending the JSON of a malformed call, where the user asked for that; every mended call is marked."""

from __future__ import annotations

import json

from hermes.core import JSON, ToolCall
from hermes.models.parsers.base import MalformedCallError, new_call_id
from hermes.models.parsers.json_scan import is_object


def mend(payload: str, error: MalformedCallError) -> ToolCall | None:
    """The call that `error` broke, its JSON read leniently; None if it cannot be made out."""
    value = _lenient(payload)
    if not isinstance(value, dict):
        return None
    name = error.name if error.bare else value.get("name")
    arguments = value if error.bare else value.get("arguments", value.get("parameters"))
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    text = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(new_call_id(), name, text, repaired=True) if is_object(text) else None


def _lenient(text: str) -> JSON:
    import json_repair

    try:
        return json_repair.loads(text)
    except (ValueError, RecursionError):
        return None
