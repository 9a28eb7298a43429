"""The extent of a malformed object in a sequence of call objects, so that the next one is still read."""

from __future__ import annotations

import re
from dataclasses import dataclass

from hermes.core import ToolCall
from hermes.models.parsers.base import MalformedCallError, broken_call
from hermes.models.parsers.json_scan import balanced_end, call_parts


@dataclass(frozen=True, slots=True)
class CallSequence:
    """How call objects follow one another in a format."""

    separator: re.Pattern[str]
    """Between one object and the next."""
    after: re.Pattern[str]
    """Text that can follow an object of the sequence, but not one inside another object's arguments."""
    joined: re.Pattern[str]
    """Text that follows an object if the sequence continues or ends there, without prose."""
    stop: re.Pattern[str]
    """Text that is never part of a sequence, unless in a string: thinking, the mark of another sequence."""


def broken_object(text: str, at: int, error: MalformedCallError, row: CallSequence) -> tuple[ToolCall, int]:
    """The malformed call object at `at`, and where it ends."""
    end = _extent(text, at, error, row)
    return broken_call(text[at:end], error), end


def _extent(text: str, at: int, error: MalformedCallError, row: CallSequence) -> int:
    if error.ends_at is not None:
        return error.ends_at
    stop = row.stop.search(text, max(at, error.doubtful_from))
    limit = stop.start() if stop else len(text)
    balanced = balanced_end(text, at, limit) if text.startswith("{", at) else None
    if balanced is not None and row.joined.match(text, balanced):
        return balanced
    if "Unterminated string" in str(error) or error.stopped_at >= len(text.rstrip()):
        return limit
    resume_at = len(text[: error.doubtful_from].rstrip(" \t\r\n,;"))
    for match in row.separator.finditer(text, max(at, resume_at), limit):
        try:
            _, _, end = call_parts(text, match.end(), "arguments", "parameters")
        except MalformedCallError:
            continue
        if row.after.match(text, end):
            return max(match.start(), at + 1)
    return balanced or limit


NAME = r"[\w./:-]+"
"""Text that can be a tool's name where the format does not quote it."""

_NAME = re.compile(NAME)


def checked_name(call: ToolCall) -> str:
    """The call's name; ValueError if it cannot be written without quotes."""
    if not _NAME.fullmatch(call.name):
        raise ValueError(f"the tool name {call.name!r} cannot be written unquoted")
    return call.name


def argument_text(call: ToolCall) -> str:
    """The arguments verbatim; no text means no arguments."""
    return call.arguments if call.arguments.strip() else "{}"
