"""Reads requests and answers of the three protocols, streamed or not, and words errors in each of them.

Pure functions over bytes and JSON. What cannot be read is left out of the record's form; the raw answer
has it.
"""

from __future__ import annotations

import json
from types import ModuleType

from hermes.core import JSON, JSONObject
from hermes.gateway.wire import chat, messages, responses
from hermes.gateway.wire.base import Answer, Protocol, Request
from hermes.models.fields import finite
from hermes.models.remote.endpoint import EventDecoder

__all__ = [
    "ROUTES",
    "Answer",
    "Protocol",
    "Request",
    "error_body",
    "read_answer",
    "read_events",
    "read_request",
]
_MODULES: dict[Protocol, ModuleType] = {
    Protocol.CHAT: chat,
    Protocol.RESPONSES: responses,
    Protocol.MESSAGES: messages,
}
ROUTES = {
    "chat/completions": Protocol.CHAT,
    "responses": Protocol.RESPONSES,
    "messages": Protocol.MESSAGES,
}


def read_request(protocol: Protocol, body: JSONObject) -> Request:
    request: Request = _MODULES[protocol].read_request(body)
    return request


def read_answer(protocol: Protocol, data: bytes) -> Answer | None:
    """The answer in a response's body, a stream of events or JSON; None: it has none."""
    body: JSONObject | None
    if data.lstrip()[:1] == b"{":
        body, complete = _object(data), True
    else:
        events = read_events(data)
        body, complete = _MODULES[protocol].assemble(events) if events else (None, False)
    if body is None or (body.get("error") and not body.get("output")):
        return None
    answer: Answer = _MODULES[protocol].read_answer(finite(body), complete)
    return answer


def read_events(data: bytes) -> list[JSONObject]:
    decoder = EventDecoder()
    pieces = [*decoder.feed(data), *decoder.end()]
    return [event for piece in pieces if (event := _object(piece)) is not None]


def error_body(protocol: Protocol | None, status: int, message: str) -> JSON:
    """An error in the form that this protocol's clients read."""
    return _MODULES[protocol or Protocol.CHAT].error_body(status, message)


def _object(data: bytes) -> JSONObject | None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None
