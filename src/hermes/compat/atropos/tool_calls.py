"""Reads one tagged tool call from a response, for environments without a tool parser."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

_ERROR = "-ERROR-"


def extract_tool_call(text: str, preferred_tags: Sequence[str] | None = None) -> str | None:
    """The text between the first pair of tags; None if there is none."""
    for tag in preferred_tags or ("tool_call",):
        if match := re.search(f"<{re.escape(tag)}>(.*?)</{re.escape(tag)}>", text, re.DOTALL):
            return match[1].strip()
    return None


def parse_tool_call(
    response: str,
    available_tools: Sequence[dict[str, Any]] | None = None,
    preferred_tags: Sequence[str] | None = None,
) -> tuple[str, dict[str, Any], bool]:
    """Name, arguments, and whether the call is invalid (the name is then `-ERROR-`)."""
    call = _read(extract_tool_call(response, preferred_tags))
    if not isinstance(call, dict):
        return _ERROR, {}, True
    name, arguments = call.get("name", ""), call.get("arguments", {})
    names = {tool.get("name") or tool.get("function", {}).get("name") for tool in available_tools or ()}
    if names and name not in names:
        return _ERROR, arguments, True
    return name, arguments, False


def _read(text: str | None) -> Any:
    """JSON; failing that, JSON with single quotes."""
    for form in (text, (text or "").replace("'", '"')):
        try:
            return json.loads(form or "", strict=False)
        except ValueError:
            continue
    return None
