"""Names and arguments of calls whose name is outside the JSON."""

from __future__ import annotations

import re

from hermes.core import ToolCall

NAME = r"[\w./:-]+"
"""What can be a tool's name where the format does not quote it."""

_NAME = re.compile(NAME)


def checked_name(call: ToolCall) -> str:
    """The call's name; ValueError if it cannot be written without quotes."""
    if not _NAME.fullmatch(call.name):
        raise ValueError(f"the tool name {call.name!r} cannot be written unquoted")
    return call.name


def argument_text(call: ToolCall) -> str:
    """The arguments verbatim; no text means no arguments."""
    return call.arguments if call.arguments.strip() else "{}"
