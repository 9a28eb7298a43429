"""Chat completion requests of OpenAI's API as ours, and our replies as its JSON. Pure.

Text and function tools only. What would change the sampling and cannot be honoured is refused, so that no
sequence states a distribution that it was not drawn from.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any

from hermes.core import JSONObject, Message, Role, Sampling, ToolCall
from hermes.errors import UsageError
from hermes.models.base import ChatReply, ChatRequest
from hermes.models.fields import as_objects, as_text
from hermes.models.remote.wire import Dialect, message_to_wire, read_calls, read_content

_ROLES = {"system": Role.SYSTEM, "developer": Role.SYSTEM, "user": Role.USER, "tool": Role.TOOL}
_REFUSED = ("logit_bias", "frequency_penalty", "presence_penalty", "response_format", "min_p")
_DIALECT = Dialect(send_reasoning=True)


def read_request(body: JSONObject) -> ChatRequest:
    """UsageError: the request wants something that is not supported."""
    refused = [name for name in _REFUSED if body.get(name)]
    if body.get("n") not in (None, 1):
        refused.append("n")
    if body.get("tool_choice") not in (None, "auto", "none"):
        refused.append("tool_choice")
    if refused:
        raise UsageError(f"a model call of the environment has {', '.join(refused)}, which is not supported.")
    tools = () if body.get("tool_choice") == "none" else _read_tools(body)
    return ChatRequest(messages=_read_messages(body), tools=tools, sampling=_read_sampling(body))


def _read_messages(body: JSONObject) -> tuple[Message, ...]:
    names: dict[str, str] = {}
    messages = []
    for fields in as_objects(body.get("messages")):
        message = _read_message(fields, names)
        names |= {call.id: call.name for call in message.tool_calls}
        messages.append(message)
    if not messages:
        raise UsageError("a model call of the environment has no messages.")
    return tuple(messages)


def _read_message(fields: JSONObject, names: Mapping[str, str]) -> Message:
    content = fields.get("content")
    if isinstance(content, list) and any(part.get("type") != "text" for part in as_objects(content)):
        raise UsageError("a message of the environment has an image or sound; only text is supported.")
    text = read_content(content)[0]
    role = as_text(fields.get("role"))
    if role == "assistant":
        reasoning = as_text(fields.get("reasoning_content")) or None
        return Message.assistant(text, reasoning=reasoning, tool_calls=read_calls(fields.get("tool_calls")))
    if role not in _ROLES:
        raise UsageError(f"a message of the environment has the role '{role}'.")
    if _ROLES[role] is Role.TOOL:
        call_id = as_text(fields.get("tool_call_id"))
        return Message.tool(ToolCall(call_id, names.get(call_id, ""), ""), text)
    return Message(_ROLES[role], text)


def _read_tools(body: JSONObject) -> tuple[JSONObject, ...]:
    functions = [tool.get("function") or {} for tool in as_objects(body.get("tools"))]
    return tuple(
        {
            "name": as_text(function.get("name")),
            "description": as_text(function.get("description")),
            "parameters": function.get("parameters") or {"type": "object", "properties": {}},
        }
        for function in functions
    )


def _read_sampling(body: JSONObject) -> Sampling:
    stop = body.get("stop")
    limits = [body[name] for name in ("max_tokens", "max_completion_tokens") if body.get(name)]
    return Sampling(
        temperature=body.get("temperature"),
        top_p=body.get("top_p"),
        top_k=body.get("top_k"),
        max_tokens=min(limits) if limits else None,
        stop=(stop,) if isinstance(stop, str) else tuple(stop or ()),
        seed=body.get("seed"),
    )


def completion(model: str, call_id: str, reply: ChatReply) -> JSONObject:
    """The body of a response that is not streamed."""
    message = {**message_to_wire(reply.message, _DIALECT), "role": "assistant"}
    choice = {"index": 0, "message": message, "finish_reason": reply.call.finish_reason, "logprobs": None}
    return {**_head(model, call_id, "chat.completion"), "choices": [choice], "usage": _usage(reply)}


def stream_events(model: str, call_id: str, reply: ChatReply) -> Iterator[bytes]:
    """The same as server-sent events: the message in one piece, its end, the usage."""
    head = _head(model, call_id, "chat.completion.chunk")
    delta = {**message_to_wire(reply.message, _DIALECT), "role": "assistant"}
    if calls := delta.get("tool_calls"):
        delta["tool_calls"] = [{"index": index, **call} for index, call in enumerate(calls)]
    pieces: tuple[dict[str, Any], ...] = (
        {"choices": [{"index": 0, "delta": delta, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": reply.call.finish_reason}]},
        {"choices": [], "usage": _usage(reply)},
    )
    for piece in pieces:
        yield b"data: " + json.dumps({**head, **piece}).encode() + b"\n\n"
    yield b"data: [DONE]\n\n"


def _head(model: str, call_id: str, kind: str) -> JSONObject:
    return {"id": f"chatcmpl-{call_id}", "object": kind, "created": int(time.time()), "model": model}


def _usage(reply: ChatReply) -> JSONObject:
    trace, usage = reply.call.tokens, reply.call.usage
    prompt = len(trace.prompt_ids) if trace else usage.prompt
    sampled = len(trace.sampled_ids) if trace else usage.completion
    return {"prompt_tokens": prompt, "completion_tokens": sampled, "total_tokens": prompt + sampled}
