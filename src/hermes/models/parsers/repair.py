"""Repairs the JSON of a malformed call, where the user enabled it; every repaired call is marked."""

from __future__ import annotations

import json

from hermes.core import JSON, ToolCall
from hermes.models.parsers.base import MalformedCallError, new_call_id
from hermes.models.parsers.json_scan import is_object


def repair_call(payload: str, error: MalformedCallError) -> ToolCall | None:
    """The malformed call that raised `error`, its JSON read leniently; None if that fails."""
    value = _parse_leniently(payload)
    if not isinstance(value, dict):
        return None
    name = error.name if error.bare else value.get("name")
    arguments = value if error.bare else value.get("arguments", value.get("parameters"))
    if not isinstance(name, str) or not name or not isinstance(arguments, dict):
        return None
    text = json.dumps(arguments, ensure_ascii=False)
    return ToolCall(new_call_id(), name, text, repaired=True) if is_object(text) else None


def _parse_leniently(text: str) -> JSON:
    import json_repair

    try:
        return json_repair.loads(text)
    except (ValueError, RecursionError):
        return None
