"""OpenAI messages and tools: one row a trajectory, and the stricter shape that its fine-tuning service takes.

`messages` keeps every message exactly: role, content, thinking, calls with their argument text verbatim
(also malformed ones, with why), results by call id, images. It does not hold how the model was called
(sampling, tokens, timing, raw replies).

`openai-finetune` has only what the upload accepts: no thinking, no images, no call without a result, tool
names of letters, digits, `_` and `-`, an assistant's turn at the end. Turns that were copied from an earlier
trajectory have weight 0.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from hermes.core import JSONObject, Message, Role, StepKind, ToolCall
from hermes.data.example import Example, UnfitError, build
from hermes.data.formats.base import Column, Format, ToolCallStyle
from hermes.data.formats.facts import FACTS, KEPT, facts, header_from, number_from, outcome_from
from hermes.data.formats.turns import arguments_object, from_messages, from_tools, to_message, to_tools

MESSAGES = Column("messages", "messages", "the turns: role, content, reasoning_content, tool_calls, …")
TOOLS = Column("tools", "json", "the tools that were offered, as JSON schemas")
_KEEPS = (
    "every message: role, content, thinking, order",
    "every call: id, name, argument text verbatim, why it is malformed, whether it was mended",
    "every result: content, call id, tool name",
    "images, tool schemas",
    KEPT,
)
_ACCEPTED_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_CALL_DETAIL = "sampling, usage, token ids, logprobs, timing, raw replies"


def write(example: Example, calls: ToolCallStyle) -> Iterator[JSONObject]:
    yield {
        **facts(example),
        "messages": [to_message(message) for message in example.messages],
        "tools": to_tools(example.tools) or None,
    }


def read(row: JSONObject) -> Example:
    messages = from_messages(row.get("messages"))
    tools = from_tools(row.get("tools"))
    return build(
        header_from(row, tuple(tool["name"] for tool in tools), row),
        messages,
        tools=tools,
        outcome=outcome_from(row),
        reward=number_from(row, "reward"),
        rating=number_from(row, "rating"),
    )


def write_finetune(example: Example, calls: ToolCallStyle) -> Iterator[JSONObject]:
    messages = example.messages
    if not messages or messages[-1].role is not Role.ASSISTANT or messages[-1].tool_calls:
        raise UnfitError("it does not end with an answer")
    _check_answered(messages)
    copied = {
        index
        for index, step in enumerate(step for step in example.trajectory.steps if not step.ephemeral)
        if step.kind is StepKind.INPUT
    }
    strict = [strict_message(message, copied=index in copied) for index, message in enumerate(messages)]
    row: JSONObject = {"messages": strict}
    if example.tools:
        row |= {"tools": strict_tools(example.tools), "parallel_tool_calls": True}
    yield row


def strict_tools(tools: Sequence[JSONObject]) -> list[JSONObject]:
    for tool in tools:
        _check_name(tool["name"])
    return to_tools(tools)


def _check_name(name: str) -> None:
    if not _ACCEPTED_NAME.fullmatch(name):
        raise UnfitError(f"OpenAI accepts no tool of the name '{name[:80]}'")


def strict_message(message: Message, *, copied: bool = False) -> JSONObject:
    if message.images:
        raise UnfitError("it has images")
    data: JSONObject = {"role": message.role.value, "content": message.content}
    if message.role is Role.TOOL:
        data["tool_call_id"] = message.tool_call_id or ""
    if message.role is Role.ASSISTANT and copied:
        data["weight"] = 0
    if message.tool_calls:
        data["content"] = message.content or None
        data["tool_calls"] = [_strict_call(call) for call in message.tool_calls]
    return data


def _strict_call(call: ToolCall) -> JSONObject:
    arguments_object(call)
    _check_name(call.name)
    function = {"name": call.name, "arguments": call.arguments}
    return {"id": call.id, "type": "function", "function": function}


def _check_answered(messages: tuple[Message, ...]) -> None:
    called = {call.id for message in messages for call in message.tool_calls}
    answered = {message.tool_call_id for message in messages if message.role is Role.TOOL}
    if called != answered:
        raise UnfitError("a tool call has no result, or a result no call")


FORMAT = Format(
    name="messages",
    version=1,
    summary="OpenAI messages with tools; every message exactly",
    columns=(*FACTS, MESSAGES, TOOLS),
    write=write,
    read=read,
    keeps=_KEEPS,
    loses=(_CALL_DETAIL,),
)
FINETUNE = Format(
    name="openai-finetune",
    version=1,
    summary="the shape that OpenAI's fine-tuning upload accepts",
    columns=(
        MESSAGES,
        TOOLS,
        Column("parallel_tool_calls", "bool", "always true where there are tools"),
    ),
    write=write_finetune,
    read=read,
    keeps=("role, content, calls with argument text, results by call id", "tool schemas"),
    loses=("thinking, every fact about the trajectory", _CALL_DETAIL),
)
