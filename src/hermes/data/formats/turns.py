"""Messages, calls and tool schemas in OpenAI's shape, and back: shared by the formats that build on it.

Reading gives back exactly what was written. Fields that the shape lacks (`error`, `repaired` on a call,
`name` on a result, `reasoning_content`, `images` beside the text) are written beside its own; servers and
trainers ignore them, and the strict formats leave them out.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence

from hermes.core import JSON, JSONObject, Message, Role, ToolCall
from hermes.core.message import pair_results
from hermes.data.example import Example, UnfitError
from hermes.data.formats.base import BadRowError, ToolCallStyle, field
from hermes.models.parsers import get_parser
from hermes.models.render.prompting import with_tools

_ROLES = frozenset(Role)


def to_tools(tools: Sequence[JSONObject]) -> list[JSONObject]:
    return [{"type": "function", "function": tool} for tool in tools]


def from_tools(value: JSON) -> tuple[JSONObject, ...]:
    """Schemas as they come: a list or its JSON text, wrapped as OpenAI does or bare."""
    if isinstance(value, str):
        value = _parsed(value, "tools")
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(tool, dict) for tool in value):
        raise BadRowError("'tools' is not a list of objects")
    tools = tuple(tool.get("function", tool) for tool in value)
    for tool in tools:
        if not isinstance(tool, dict) or not isinstance(tool.get("name"), str):
            raise BadRowError("a tool has no name")
    return tools


def to_message(message: Message) -> JSONObject:
    """One message with its argument text verbatim; fields that are not set are left out."""
    data: JSONObject = {"role": message.role.value, "content": message.content}
    if message.reasoning is not None:
        data["reasoning_content"] = message.reasoning
    if message.tool_calls:
        data["tool_calls"] = [_call(call) for call in message.tool_calls]
    if message.tool_call_id is not None:
        data["tool_call_id"] = message.tool_call_id
    if message.name is not None:
        data["name"] = message.name
    if message.images:
        data["images"] = list(message.images)
    return data


def from_messages(value: JSON) -> tuple[Message, ...]:
    if not isinstance(value, list) or not value:
        raise BadRowError("'messages' is not a list with at least one message")
    return pair_results([_message(item, index) for index, item in enumerate(value)])


def for_template(example: Example, calls: ToolCallStyle) -> tuple[list[JSONObject], list[JSONObject] | None]:
    """Messages and tools as chat templates take them: arguments are objects, or everything is text."""
    if calls is ToolCallStyle.TEXT:
        return template_messages(as_text(example.messages, example.tools)), None
    return template_messages(example.messages), to_tools(example.tools) or None


def as_text(messages: Sequence[Message], tools: Sequence[JSONObject]) -> tuple[Message, ...]:
    """The conversation in the Hermes dialect: nothing but role and content."""
    return with_tools(messages, tools, get_parser("hermes"))


def template_messages(messages: Iterable[Message]) -> list[JSONObject]:
    shaped = []
    for message in messages:
        data: JSONObject = {"role": message.role.value, "content": message.content}
        if message.images:
            raise UnfitError("it has images")
        if message.reasoning is not None:
            data["reasoning_content"] = message.reasoning
        if message.tool_calls:
            data["tool_calls"] = [_template_call(call) for call in message.tool_calls]
        if message.role is Role.TOOL:
            data |= {"tool_call_id": message.tool_call_id or "", "name": message.name or ""}
        shaped.append(data)
    return shaped


def arguments_object(call: ToolCall) -> JSONObject:
    """The arguments as an object; a call without one cannot be trained on."""
    try:
        return call.parsed()
    except (ValueError, RecursionError):
        raise UnfitError("a tool call's arguments are not a JSON object") from None


def _call(call: ToolCall) -> JSONObject:
    data: JSONObject = {
        "id": call.id,
        "type": "function",
        "function": {"name": call.name, "arguments": call.arguments},
    }
    if call.error is not None:
        data["error"] = call.error
    if call.repaired:
        data["repaired"] = True
    return data


def _template_call(call: ToolCall) -> JSONObject:
    function = {"name": call.name, "arguments": arguments_object(call)}
    return {"id": call.id, "type": "function", "function": function}


def _message(item: JSON, index: int) -> Message:
    if not isinstance(item, dict):
        raise BadRowError(f"message {index} is not an object")
    role = item.get("role")
    if role not in _ROLES:
        raise BadRowError(f"message {index} has the unknown role {json.dumps(role)}")
    content, images = _content(item.get("content"), index)
    reasoning = item.get("reasoning_content", item.get("reasoning"))
    return Message(
        Role(role),
        content,
        reasoning if isinstance(reasoning, str) else None,
        tuple(_read_call(call, index) for call in item.get("tool_calls") or ()),
        item.get("tool_call_id"),
        item.get("name"),
        tuple(item.get("images") or images),
    )


def _content(value: JSON, index: int) -> tuple[str, tuple[str, ...]]:
    if value is None or isinstance(value, str):
        return value or "", ()
    if not isinstance(value, list) or not all(isinstance(part, dict) for part in value):
        raise BadRowError(f"message {index} has content that is neither text nor a list of parts")
    text = "".join(part.get("text") or "" for part in value if part.get("type") == "text")
    urls = [(part.get("image_url") or {}).get("url") for part in value if part.get("type") == "image_url"]
    return text, tuple(url for url in urls if isinstance(url, str))


def _read_call(item: JSON, index: int) -> ToolCall:
    if not isinstance(item, dict):
        raise BadRowError(f"message {index} has a tool call that is not an object")
    try:
        function = field(item, "function", dict) if "function" in item else item
        name = field(function, "name", str)
    except BadRowError as error:
        raise BadRowError(f"message {index} has a tool call whose {error}") from None
    raw = function.get("arguments")
    arguments = raw if isinstance(raw, str) else json.dumps({} if raw is None else raw)
    error_text = item.get("error")
    problem = error_text if isinstance(error_text, str) else None
    return ToolCall(item.get("id") or "", name, arguments, problem, item.get("repaired") is True)


def _parsed(text: str, name: str) -> JSON:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadRowError(f"'{name}' is not JSON: {error}") from None
