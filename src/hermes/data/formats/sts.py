"""The hub's session-trace format (STS): one file a conversation, which its trace viewer shows.

Line 1 is the session, each further line a message. As a table (Parquet) a row is a whole session. Kept are
the messages with their roles; why a call is malformed, the tools and the settings of the model calls are not
part of the format, but rows carry the tools as extra metadata, which it allows.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace

from hermes.core import JSON, JSONObject, Message, Role, ToolCall
from hermes.data.example import Example, UnfitError, build
from hermes.data.formats.base import BadRowError, Column, Format, ToolCallStyle, field
from hermes.data.formats.facts import header_from
from hermes.data.formats.turns import from_tools, to_tools

HARNESS = "hermes"
_TITLE_CHARS = 80


def write(example: Example, calls: ToolCallStyle) -> Iterator[JSONObject]:
    header = example.trajectory.header
    if not example.messages:
        raise UnfitError("it has no messages")
    prompt = next((message.content for message in example.messages if message.role is Role.USER), "")
    steps = [step for step in example.trajectory.steps if not step.ephemeral]
    yield {
        "type": "session",
        "harness": str(header.metadata.get("agent") or HARNESS),
        "id": header.id,
        "name": " ".join(prompt.split())[:_TITLE_CHARS],
        "model": header.model,
        "created_at_ms": header.created_at_ms,
        "tools": to_tools(example.tools) or None,
        "messages": [_message(step.message, step.started_at_ms, header.model) for step in steps],
    }


def lines(row: JSONObject) -> list[JSONObject]:
    """The lines of the session's file."""
    session = {name: value for name, value in row.items() if name != "messages" and value is not None}
    return [session, *({"type": "message", "message": message} for message in row["messages"])]


def join_lines(lines: list[JSONObject]) -> JSONObject:
    """The row of a session's file, from its lines."""
    if not lines or lines[0].get("type") != "session":
        raise BadRowError("the first line is not a session")
    for number, line in enumerate(lines[1:], 2):
        if line.get("type") != "message" or not isinstance(line.get("message"), dict):
            raise BadRowError(f"line {number} is not a message")
    return {**lines[0], "messages": [line["message"] for line in lines[1:]]}


def read(row: JSONObject) -> Example:
    written = field(row, "messages", list)
    if not written:
        raise BadRowError("'messages' is empty")
    messages = tuple(_read_message(item, index) for index, item in enumerate(written))
    tools = from_tools(row.get("tools"))
    header = header_from(row, tuple(tool["name"] for tool in tools), row)
    harness = row.get("harness")
    if isinstance(harness, str) and harness != HARNESS:
        header = replace(header, metadata={**header.metadata, "agent": harness})
    return build(header, messages, tools=tools)


def _message(message: Message, at_ms: int, model: str) -> JSONObject:
    data: JSONObject = {"role": message.role.value, "content": message.content}
    if message.reasoning is not None:
        data["reasoningContent"] = message.reasoning
    if message.tool_calls:
        data["toolCalls"] = [
            {"id": call.id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.role is Role.TOOL:
        data["toolCallId"] = message.tool_call_id or ""
    if message.role is Role.ASSISTANT:
        data["model"] = model
    if at_ms > 0:
        data["timestamp"] = at_ms
    return data


def _read_message(item: JSON, index: int) -> Message:
    if not isinstance(item, dict):
        raise BadRowError(f"message {index} is not an object")
    role = item.get("role")
    if role not in set(Role):
        raise BadRowError(f"message {index} has the unknown role {json.dumps(role)}")
    return Message(
        Role(role),
        item.get("content") or "",
        item.get("reasoningContent"),
        tuple(_read_call(call, index) for call in item.get("toolCalls") or ()),
        item.get("toolCallId") or None,
    )


def _read_call(item: JSON, index: int) -> ToolCall:
    function = item.get("function") if isinstance(item, dict) else None
    if not isinstance(function, dict) or not isinstance(function.get("name"), str):
        raise BadRowError(f"message {index} has a tool call without a name")
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {})
    return ToolCall(item.get("id") or "", function["name"], text)


FORMAT = Format(
    name="sts",
    version=1,
    summary="the hub's session traces: a folder with one file a conversation",
    columns=(
        Column("type", "string", "always `session`"),
        Column("harness", "string", "`hermes`, or the agent whose session it is"),
        Column("id", "string", "the trajectory's id in the store"),
        Column("name", "string", "how the first user message begins"),
        Column("model", "string", "provider/model that answered"),
        Column("created_at_ms", "int64", "Unix time of the start"),
        Column("tools", "json", "the tools that were offered"),
        Column("messages", "trace_messages", "role, content, reasoningContent, toolCalls, toolCallId, …"),
    ),
    write=write,
    read=read,
    lines=lines,
    keeps=(
        "every message: role, content, thinking, order",
        "every call: id, name, argument text verbatim",
        "every result: content, call id; tool name where the call is there",
        "id, model, created_at_ms, tool schemas",
    ),
    loses=("images, why a call is malformed", "outcome, reward, rating, metadata", "how it was called"),
)
