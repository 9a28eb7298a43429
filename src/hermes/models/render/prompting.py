"""Tools as plain text: schemas, calls and results for models whose chat template has no tools.

The model is shown the call format that the `hermes` parser reads, and the ShareGPT export writes the same
texts, so a model is prompted, parsed and trained in one format. Pure functions.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from itertools import groupby

from hermes.core import JSON, JSONObject, Message, Role
from hermes.models.parsers import ToolCallParser

TEXT_TOOLS_PARSER = "hermes"
"""Name of the parser that reads the calls this module prompts for."""

_INSTRUCTIONS = """\
You can call tools. Each line inside <tools></tools> describes one tool; its parameters are a JSON schema.
<tools>
{tools}
</tools>
To call a tool, write its name and arguments as one JSON object inside <tool_call></tool_call>:
<tool_call>
{{"name": "tool_name", "arguments": {{"parameter": "value"}}}}
</tool_call>
Write one such block for each call. The results come back inside <tool_response></tool_response>."""


def tool_system_text(tools: Sequence[JSONObject]) -> str:
    """The system text that offers `tools`, the keys of their schemas in the order they have."""
    return _INSTRUCTIONS.format(tools="\n".join(map(_schema_line, tools)))


def _schema_line(tool: JSONObject) -> str:
    return json.dumps({"name": tool["name"], **tool}, ensure_ascii=False)


def tool_response_text(call_id: str, name: str, content: str) -> str:
    """One tool result. Content that is a JSON object or array is embedded as such, other content as text."""
    response = {"tool_call_id": call_id, "name": name, "content": _parse_structured(content)}
    return f"<tool_response>\n{json.dumps(response, ensure_ascii=False)}\n</tool_response>"


def assistant_text(message: Message, parser: ToolCallParser) -> str:
    """An assistant message as the model would have written it: thinking, content, calls."""
    parts = []
    if message.reasoning is not None:
        parts.append(f"<think>\n{message.reasoning}\n</think>")
    if message.content:
        parts.append(message.content)
    if message.tool_calls:
        parts.append(parser.render(message.tool_calls))
    return "\n".join(parts)


def with_tools(
    messages: Sequence[Message],
    tools: Sequence[JSONObject],
    parser: ToolCallParser,
    result_role: Role = Role.TOOL,
) -> tuple[Message, ...]:
    """The conversation as messages of text alone.

    Tools are described in the system message, calls are written into the assistant's content, and consecutive
    results become one turn of `result_role`, the role that suits the model's template
    (`template.result_role`).
    """
    plain: list[Message] = []
    for is_result, group in groupby(
        _add_tool_system_text(messages, tools), lambda message: message.role is Role.TOOL
    ):
        if is_result:
            plain.append(Message(result_role, "\n".join(map(_result_text, group))))
        else:
            plain += [_as_text(message, parser) for message in group]
    return tuple(plain)


def _add_tool_system_text(messages: Sequence[Message], tools: Sequence[JSONObject]) -> list[Message]:
    if not tools:
        return list(messages)
    text = tool_system_text(tools)
    if messages and messages[0].role is Role.SYSTEM:
        return [replace(messages[0], content=f"{messages[0].content}\n\n{text}"), *messages[1:]]
    return [Message.system(text), *messages]


def _as_text(message: Message, parser: ToolCallParser) -> Message:
    if message.role is not Role.ASSISTANT:
        return message
    return Message.assistant(assistant_text(message, parser))


def _result_text(message: Message) -> str:
    return tool_response_text(message.tool_call_id or "", message.name or "", message.content)


def _parse_structured(content: str) -> JSON:
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        return content
    return value if isinstance(value, dict | list) else content
