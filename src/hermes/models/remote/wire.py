"""Converts our messages to and from OpenAI's JSON. Pure: no I/O, no client.

The model's text is preserved verbatim: argument text is never serialised again, and a call whose arguments do
not parse becomes a `ToolCall` with `error` set, without affecting the other calls. Only requests are
rewritten: servers reject a history with argument text that is not a JSON object, or a call without a tool's
name, so such text is sent as `{"unparsed": "<the text>"}` and such a call as `unnamed`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hermes.core import JSON, JSONObject, Message, Role, Sampling, ToolCall
from hermes.core.message import hide_thinking
from hermes.models.fields import as_object, as_objects, as_parts, as_text

if TYPE_CHECKING:
    from hermes.models.base import ChatRequest
    from hermes.models.parsers import ToolCallParser


@dataclass(frozen=True, slots=True)
class Dialect:
    """How one server's request fields differ from the common ones."""

    max_tokens_field: str = "max_tokens"
    nested_effort: bool = False
    """Reasoning effort as {"reasoning": {"effort": …}} instead of "reasoning_effort"."""
    send_reasoning: bool = False
    """Return the assistant's earlier thinking as `reasoning_content`."""


def dialect_for(base_url: str, *, send_reasoning: bool = False) -> Dialect:
    host = urlsplit(base_url).hostname or ""
    return Dialect(
        # OpenAI's newer models reject max_tokens; many other servers accept nothing else.
        max_tokens_field="max_completion_tokens" if host == "api.openai.com" else "max_tokens",
        nested_effort=host == "openrouter.ai",
        send_reasoning=send_reasoning,
    )


def chat_body(model: str, request: ChatRequest, dialect: Dialect) -> JSONObject:
    """The body of POST /chat/completions."""
    body: JSONObject = {
        "model": model,
        "messages": [message_to_wire(message, dialect) for message in request.messages],
    }
    if request.tools:
        body["tools"] = [{"type": "function", "function": tool} for tool in request.tools]
    return {**body, **sampling_to_wire(request.sampling, dialect)}


def with_extra_body(sampling: Sampling, extra: JSONObject) -> Sampling:
    """The sampling with a provider's configured extra fields; the request's own take precedence."""
    return replace(sampling, extra_body={**extra, **(sampling.extra_body or {})}) if extra else sampling


def sampling_to_wire(sampling: Sampling, dialect: Dialect) -> JSONObject:
    fields = sampling.to_json()
    if "max_tokens" in fields:
        fields[dialect.max_tokens_field] = fields.pop("max_tokens")
    if dialect.nested_effort and "reasoning_effort" in fields:
        fields["reasoning"] = {"effort": fields.pop("reasoning_effort")}
    extra = fields.pop("extra_body", {})
    return {**fields, **extra}


def message_to_wire(message: Message, dialect: Dialect) -> JSONObject:
    data: JSONObject = {"role": message.role.value, "content": message.content}
    if message.images:
        images = [{"type": "image_url", "image_url": {"url": url}} for url in message.images]
        text = [{"type": "text", "text": message.content}] if message.content else []
        data["content"] = [*text, *images]
    if message.role is Role.TOOL:
        data["tool_call_id"] = message.tool_call_id
    if message.tool_calls:
        data["content"] = message.content or None
        data["tool_calls"] = [_call_to_wire(call) for call in message.tool_calls]
    if dialect.send_reasoning and message.reasoning is not None:
        data["reasoning_content"] = message.reasoning
    return data


def seen(messages: Sequence[Message], dialect: Dialect) -> tuple[Message, ...] | None:
    """The messages as they were sent, if that is without their thinking; None: with all of it."""
    if dialect.send_reasoning or all(message.reasoning is None for message in messages):
        return None
    return hide_thinking(messages, range(len(messages)))


def _call_to_wire(call: ToolCall) -> JSONObject:
    try:
        call.parsed()
        arguments = call.arguments if call.arguments.strip() else "{}"
    except (ValueError, RecursionError):
        arguments = json.dumps({"unparsed": call.arguments})
    function = {"name": call.name or "unnamed", "arguments": arguments}
    return {"id": call.id, "type": "function", "function": function}


@dataclass(frozen=True, slots=True)
class ReadMessage:
    message: Message
    parser: str | None
    """The text parser that found tool calls in the content; None if none were found."""


def message_from_wire(
    data: JSONObject, parser: ToolCallParser | None = None, tools: Sequence[JSONObject] = ()
) -> ReadMessage:
    """An assistant message; `parser` reads the text only if the server returned no structured calls."""
    content, thinking = read_content(data.get("content"))
    reasoning = _reasoning(data) or thinking
    calls = read_calls(data.get("tool_calls"))
    if parser is None or calls or not content:
        text = content or as_text(data.get("refusal"))
        return ReadMessage(Message.assistant(text, reasoning=reasoning, tool_calls=calls), None)
    parsed = parser.parse(content, tools)
    message = Message.assistant(
        parsed.content, reasoning=reasoning or parsed.reasoning, tool_calls=parsed.tool_calls
    )
    return ReadMessage(message, parser.name if parsed.tool_calls else None)


def read_calls(data: JSON) -> tuple[ToolCall, ...]:
    """Structured tool calls; each has an id that is unique in the message."""
    calls: list[ToolCall] = []
    for item in as_objects(data):
        call = _read_call(item)
        if not call.id or call.id in {earlier.id for earlier in calls}:
            call = ToolCall(f"call_{secrets.token_hex(4)}", call.name, call.arguments, call.error)
        calls.append(call)
    return tuple(calls)


def _read_call(item: JSONObject) -> ToolCall:
    function = as_object(item.get("function"))
    value = function.get("arguments")
    arguments = value if isinstance(value, str) else json.dumps({} if value is None else value)
    call = ToolCall(as_text(item.get("id")), as_text(function.get("name")), arguments)
    error = None if call.name else "the call names no tool"
    try:
        call.parsed()
    except ValueError as reason:
        error = error or f"the arguments are not a JSON object: {reason}"
    except RecursionError:
        error = error or "the arguments are nested too deeply"
    return ToolCall(call.id, call.name, arguments, error)


def read_content(value: JSON) -> tuple[str, str | None]:
    """Text and thinking of a content field, which some servers send as a list of typed parts."""
    parts = as_parts(value)
    texts = [part.get("text") for part in parts if as_text(part.get("type")).endswith("text")]
    text = "".join(map(as_text, texts))
    thinking = [read_content(part.get("thinking")) for part in parts if part.get("type") == "thinking"]
    return text, "".join(piece for piece, _ in thinking) or None


def _reasoning(data: JSONObject) -> str | None:
    """Thinking, under any of the names that servers give it; encrypted thinking stays in the raw reply."""
    for key in ("reasoning_content", "reasoning"):
        if text := as_text(data.get(key)):
            return text
    parts = as_objects(data.get("reasoning_details"))
    return "".join(as_text(part.get("text")) or as_text(part.get("summary")) for part in parts) or None
