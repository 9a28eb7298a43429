"""The identity of messages in a conversation, as clients send it back. Pure.

An answer with tool calls is recognised by the ids of its calls, because clients rewrite arguments, trim
text and drop thinking; an answer without calls by its text, white space folded. Every other message has to be
equal.
"""

from __future__ import annotations

import hashlib
import json
from enum import StrEnum

from hermes.core.hashing import canonical_json
from hermes.core.json import JSON
from hermes.core.message import Message, Role, ToolCall


class Echo(StrEnum):
    """How an answer differs from what was sampled when a client sends it back."""

    EQUAL = "equal"
    REWRITTEN = "rewritten"
    """Serialised otherwise, repaired or wrapped: the same answer."""
    EDITED = "edited"
    """Other arguments than the model wrote: no answer of the model."""


def message_key(message: Message) -> bytes:
    """The identity of a message in a history; thinking is not part of it."""
    if message.role is Role.ASSISTANT and message.tool_calls:
        return digest("calls", *sorted(call.id for call in message.tool_calls))
    if message.role is Role.ASSISTANT:
        return digest("answer", " ".join(message.content.split()))
    images = canonical_json(list(message.images)) if message.images else ""
    return digest(message.role.value, message.tool_call_id or "", message.content, images)


def extend(path: bytes, key: bytes) -> bytes:
    """The identity of a history with one more message."""
    return hashlib.blake2b(path + key, digest_size=16).digest()


def digest(*parts: str) -> bytes:
    data = b"\0".join(part.encode("utf-8", "surrogatepass") for part in parts)
    return hashlib.blake2b(data, digest_size=16).digest()


def compare(sampled: Message, returned: Message) -> Echo:
    """Compares an answer with what came back; both have the same key."""
    returned_calls = {call.id: call for call in returned.tool_calls}
    echoes = [_compare_call(call, returned_calls[call.id]) for call in sampled.tool_calls]
    if Echo.EDITED in echoes:
        return Echo.EDITED
    rewritten = Echo.REWRITTEN in echoes or sampled.content != returned.content
    return Echo.REWRITTEN if rewritten else Echo.EQUAL


def _compare_call(sampled: ToolCall, returned: ToolCall) -> Echo:
    if (sampled.name, sampled.arguments) == (returned.name, returned.arguments):
        return Echo.EQUAL
    wrote, shows = _parsed(sampled), _parsed(returned)
    if wrote is None:  # the client had to make something of it
        return Echo.REWRITTEN
    return Echo.REWRITTEN if (wrote, sampled.name) == (shows, returned.name) else Echo.EDITED


def _parsed(call: ToolCall) -> str | None:
    """The arguments in an order of their own; None if they are not an object."""
    try:
        return json.dumps(_as_javascript(call.parsed()), sort_keys=True)
    except (ValueError, RecursionError):
        return None


def _as_javascript(value: JSON) -> JSON:
    """The value with numbers as most clients write them: 1.0 is 1."""
    if isinstance(value, dict):
        return {name: _as_javascript(item) for name, item in value.items()}
    if isinstance(value, list):
        return [_as_javascript(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value
