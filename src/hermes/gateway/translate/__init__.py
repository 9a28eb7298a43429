"""Answers clients of Anthropic Messages and OpenAI Responses from a provider's chat completions.

Translated are tools, parallel calls, thinking, images, forced tools, schemas of answers, stop reasons and the
provider's own usage. Not promised: documents, tools that a provider runs itself, stored responses.
"""

from __future__ import annotations

import json

from hermes.core import JSON, JSONObject
from hermes.errors import UsageError
from hermes.gateway.translate.base import Translation
from hermes.gateway.translate.messages import MessagesTranslation
from hermes.gateway.translate.responses import ResponsesTranslation
from hermes.gateway.wire import Protocol, error_body
from hermes.models.fields import as_object, as_objects, as_text

_TOO_LONG = ("context length", "context_length_exceeded", "maximum context", "too long", "context window")


def open_translation(protocol: Protocol, body: JSONObject, model: str | None) -> Translation:
    """The translation of one call; UsageError if the provider cannot do what it needs."""
    if protocol is Protocol.MESSAGES:
        return MessagesTranslation(body, model)
    if protocol is Protocol.RESPONSES:
        return ResponsesTranslation(body, model)
    raise UsageError("this provider does not serve chat completions")


def is_too_long(data: bytes) -> bool:
    """Whether a provider's error says that the prompt, or what it may generate, does not fit."""
    text = data.decode("utf-8", "replace").lower()
    return any(words in text for words in _TOO_LONG)


def error(protocol: Protocol, status: int, data: bytes) -> JSON:
    """A provider's error in this protocol's form, and in the words on which its clients act."""
    content = as_object(_parse(data))
    inner = content.get("error")
    if protocol is not Protocol.MESSAGES and isinstance(inner, dict):
        return content  # Responses and Chat Completions have the same form
    message = inner if isinstance(inner, str) else as_text(as_object(inner).get("message"))
    message = message or as_text(content.get("message")) or data[:500].decode("utf-8", "replace")
    if protocol is Protocol.MESSAGES and is_too_long(data):
        message = f"prompt is too long: {message}"
    return error_body(protocol, status, message or "the provider answered without a message")


def model_list(data: bytes) -> JSONObject:
    """A provider's models in the form that clients of Messages read."""
    names = [as_text(item.get("id")) for item in as_objects(as_object(_parse(data)).get("data"))]
    models = [
        {"type": "model", "id": name, "display_name": name, "created_at": "1970-01-01T00:00:00Z"}
        for name in names
        if name
    ]
    ends = {"first_id": models[0]["id"], "last_id": models[-1]["id"]} if models else {}
    return {"data": models, "has_more": False, **ends}


def _parse(data: bytes) -> JSON:
    try:
        return json.loads(data)
    except (ValueError, RecursionError):
        return None
