"""A model call in terms that every protocol shares: a conversation, the tools on offer, an answer."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, replace
from enum import StrEnum

from hermes.core import JSON, JSONObject, Message, Role, Sampling, ToolCall, Usage
from hermes.models.fields import as_object, as_text

BILLING_LINE = re.compile(r"\Ax-anthropic-billing-header:[^\n]*\n?")
"""A line of Claude Code that no model needs; it differs from prompt to prompt."""


class Protocol(StrEnum):
    CHAT = "chat"
    RESPONSES = "responses"
    MESSAGES = "messages"


@dataclass(frozen=True, slots=True)
class Request:
    """The request as the model sees it; fields that no model is shown are left out."""

    messages: tuple[Message, ...]
    tools: tuple[JSONObject, ...]
    """Schemas: {name, description, parameters}."""
    sampling: Sampling
    model: str
    failed: frozenset[str] = frozenset()
    """Ids of the tool calls whose result says that it is an error."""
    previous: str | None = None
    """The id of the answer that the provider has the history of, if the request leaves it out."""


@dataclass(frozen=True, slots=True)
class Answer:
    message: Message
    finish_reason: str
    usage: Usage
    model: str
    id: str
    complete: bool
    """False if the stream was cut; the message is what had arrived."""
    raw: JSONObject


def tool_call(call_id: str, name: str, arguments: JSON) -> ToolCall:
    """The call with its arguments verbatim where they are text."""
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    call = ToolCall(call_id, name, text)
    try:
        call.parsed()
    except (ValueError, RecursionError) as error:
        return replace(call, error=f"the arguments are not a JSON object: {error}")
    return call


def joined(messages: list[Message]) -> tuple[Message, ...]:
    """The messages, with an answer that a client split (thinking, text, each call) in one piece."""
    whole: list[Message] = []
    for message in messages:
        last = whole[-1] if whole else None
        if last is None or last.role is not Role.ASSISTANT or message.role is not Role.ASSISTANT:
            whole.append(message)
            continue
        reasoning = "\n".join(part for part in (last.reasoning, message.reasoning) if part) or None
        calls = (*last.tool_calls, *message.tool_calls)
        whole[-1] = Message.assistant(last.content + message.content, reasoning=reasoning, tool_calls=calls)
    return tuple(whole)


def schema(name: JSON, description: JSON, parameters: JSON) -> JSONObject:
    return {
        "name": as_text(name),
        "description": as_text(description),
        "parameters": as_object(parameters) or {"type": "object", "properties": {}},
    }


def number(value: JSON) -> float | None:
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


def count(value: JSON) -> int | None:
    return value if type(value) is int and value > 0 else None


def texts(value: JSON) -> tuple[str, ...]:
    """Stop sequences: one text or several."""
    items = value if isinstance(value, list) else [value]
    return tuple(item for item in items if isinstance(item, str))


def data_url(media_type: str, data: str) -> str:
    return f"data:{media_type};base64,{data}"
