"""OpenAI's messages and tools in our own words. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from hermes.core import JSONObject, Message, Role, ToolCall
from hermes.engine.server.openai.errors import wrong
from hermes.models.fields import as_text
from hermes.models.remote.wire import read_calls, read_content

_ROLES = {
    "system": Role.SYSTEM,
    "developer": Role.SYSTEM,
    "user": Role.USER,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
}


def read_messages(messages: Sequence[JSONObject]) -> tuple[Message, ...]:
    """Problem: a message is none, or holds more than text."""
    called: dict[str, str] = {}
    read = []
    for index, data in enumerate(messages):
        message = _read_message(data, called, f"messages[{index}]")
        called |= {call.id: call.name for call in message.tool_calls}
        read.append(message)
    return tuple(read)


def _read_message(data: JSONObject, called: Mapping[str, str], place: str) -> Message:
    role = _ROLES.get(as_text(data.get("role")))
    if role is None:
        raise wrong(f"{place}.role is {data.get('role')!r}: use one of {', '.join(_ROLES)}", place)
    content = _read_text(data.get("content"), place)
    if role is Role.ASSISTANT:
        thought = as_text(data.get("reasoning_content")) or as_text(data.get("reasoning")) or None
        return Message.assistant(content, reasoning=thought, tool_calls=read_calls(data.get("tool_calls")))
    if role is Role.TOOL:
        call_id = as_text(data.get("tool_call_id"))
        name = as_text(data.get("name")) or called.get(call_id, "")
        return Message.tool(ToolCall(call_id, name, ""), content)
    return Message(role, content)


def _read_text(content: Any, place: str) -> str:
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or part.get("type") not in ("text", "thinking"):
                kind = part.get("type") if isinstance(part, dict) else part
                raise wrong(f"{place}.content has a part of type {kind!r}: only text is understood", place)
    elif content is not None and not isinstance(content, str):
        raise wrong(f"{place}.content must be text", place)
    return read_content(content)[0]


def read_tools(
    tools: Sequence[JSONObject] | None, choice: str | Mapping[str, Any] | None
) -> tuple[JSONObject, ...]:
    """The tools to offer, without their envelope. Problem: one is none, or a call is to be forced."""
    if choice == "none":
        return ()
    if choice not in (None, "auto"):
        raise wrong(
            f"tool_choice {choice!r} is not offered: the model decides ('auto') or 'none'", "tool_choice"
        )
    return tuple(_read_tool(tool, f"tools[{index}]") for index, tool in enumerate(tools or ()))


def _read_tool(tool: JSONObject, place: str) -> JSONObject:
    function = tool.get("function")
    if tool.get("type") != "function" or not isinstance(function, dict) or not as_text(function.get("name")):
        raise wrong(f"{place} must be {{'type': 'function', 'function': {{'name': ..., ...}}}}", "tools")
    return {  # in the order in which models were taught to read it
        "name": function["name"],
        "description": function.get("description") or "",
        "parameters": function.get("parameters") or {"type": "object", "properties": {}},
    }


def call_to_wire(call: ToolCall) -> JSONObject:
    return {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments or "{}"},
    }
