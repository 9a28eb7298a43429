"""Reading ShareGPT rows: our own exactly, those of hermes-agent as far as possible.

Our own rows come back as they were written, except where the format is ambiguous: text that itself contains
the dialect's tags, ids of calls without a result or with a second result of the same name, and the spacing
of results that were JSON. hermes-agent inserts an empty thinking block where there was none, and a system
turn; the model never received or wrote them, so they are not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace

from hermes.core import JSON, JSONObject, Message, Role
from hermes.data.example import Example, build
from hermes.data.formats.base import BadRowError, field
from hermes.data.formats.facts import header_from, number_from, outcome_from
from hermes.data.formats.turns import from_tools
from hermes.models.parsers import get_parser
from hermes.models.render.prompting import tool_system_text

_ROLES = {
    "system": Role.SYSTEM,
    "human": Role.USER,
    "user": Role.USER,
    "gpt": Role.ASSISTANT,
    "assistant": Role.ASSISTANT,
    "tool": Role.TOOL,
}
_BEFORE_TOOLS, _AFTER_TOOLS = tool_system_text(()).split("<tools>\n\n</tools>")
_HERMES_AGENT_TOOLS = re.compile(r"<tools>\s*(\[.*\])\s*</tools>", re.DOTALL)
_RESPONSE = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
_OPEN, _CLOSE, _CALL = "<think>\n", "\n</think>", "<tool_call>\n"
_INVENTED_THOUGHT = "<think>\n</think>\n"


def read(row: JSONObject) -> Example:
    """One row with `conversations`."""
    turns = field(row, "conversations", list)
    if not turns:
        raise BadRowError("'conversations' is empty")
    messages: list[Message] = []
    tools: tuple[JSONObject, ...] = ()
    for index, turn in enumerate(turns):
        role, value = _turn(turn, index)
        if role is Role.SYSTEM and index == 0:
            content, tools = split_system(value)
            messages += [] if content is None else [Message.system(content)]
        elif role is Role.TOOL:
            messages += _results(value, index)
        elif role is Role.ASSISTANT:
            messages.append(_assistant(value, index))
        else:
            messages.append(Message(role, value))
    matched = match_results(messages)
    names = tuple(tool["name"] for tool in tools) or tuple(row.get("tool_names") or ())
    return build(
        header_from(row, names, row),
        matched,
        tools=tools,
        outcome=outcome_from(row),
        reward=number_from(row, "reward"),
        rating=number_from(row, "rating"),
    )


def split_system(value: str) -> tuple[str | None, tuple[JSONObject, ...]]:
    """The text of a system turn, and the tools it offers; None if it only offers tools."""
    start = value.rfind(f"{_BEFORE_TOOLS}<tools>\n")
    if start >= 0 and value.endswith(f"</tools>{_AFTER_TOOLS}"):
        listed = value[start + len(_BEFORE_TOOLS) + len("<tools>\n") : -len(f"\n</tools>{_AFTER_TOOLS}")]
        tools = from_tools([_json(line, "a tool's schema") for line in listed.split("\n")])
        return (None if start == 0 else value[:start].removesuffix("\n\n")), tools
    synthesised = _HERMES_AGENT_TOOLS.search(value)
    if synthesised is None:
        return value, ()
    offered = from_tools(_json(synthesised[1], "the list of tools"))
    return None, tuple({k: v for k, v in tool.items() if k != "required"} for tool in offered)


def match_results(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Gives calls the ids of their results; the format has no field for a call's id."""
    matched = list(messages)
    for index, message in enumerate(matched):
        if not message.tool_calls:
            continue
        results = []
        for later in matched[index + 1 :]:
            if later.role is not Role.TOOL:
                break
            results.append(later)
        calls = []
        for number, call in enumerate(message.tool_calls):
            result = next((a for a in results if a.tool_call_id and a.name == call.name), None)
            if result is not None:
                results.remove(result)
            call_id = result.tool_call_id if result else None
            calls.append(replace(call, id=call_id or f"call_{index}_{number}"))
        matched[index] = replace(message, tool_calls=tuple(calls))
    return tuple(matched)


def _turn(turn: JSON, index: int) -> tuple[Role, str]:
    if not isinstance(turn, dict):
        raise BadRowError(f"turn {index} is not an object")
    name = turn.get("from")
    if name not in _ROLES:
        raise BadRowError(f"turn {index} has the unknown role {json.dumps(name)}")
    if not isinstance(turn.get("value"), str):
        raise BadRowError(f"turn {index} has no text")
    return _ROLES[name], turn["value"]


def _assistant(value: str, index: int) -> Message:
    reasoning, rest = _thinking(value.removeprefix(_INVENTED_THOUGHT))
    at = 0 if rest.startswith(_CALL) else rest.find(f"\n{_CALL}")
    if at < 0:
        return Message.assistant(rest, reasoning=reasoning)
    content, calls_text = rest[:at], rest[at:].removeprefix("\n")
    parsed = get_parser("hermes").parse(calls_text)
    if parsed.content.strip() or not parsed.tool_calls:
        raise BadRowError(f"turn {index} has text between or after its tool calls")
    return Message.assistant(content, reasoning=reasoning, tool_calls=parsed.tool_calls)


def _thinking(value: str) -> tuple[str | None, str]:
    end = value.find(_CLOSE)
    if not value.startswith(_OPEN) or end < 0:
        return None, value
    return value[len(_OPEN) : end], value[end + len(_CLOSE) :].removeprefix("\n")


def _results(value: str, index: int) -> list[Message]:
    bodies = _RESPONSE.findall(value)
    if not bodies:
        return [Message(Role.TOOL, value)]
    return [_result(body, index) for body in bodies]


def _result(body: str, index: int) -> Message:
    data = _json(body, f"the tool response in turn {index}")
    if not isinstance(data, dict):
        raise BadRowError(f"the tool response in turn {index} is not an object")
    content = data.get("content")
    text = content if isinstance(content, str) else json.dumps(content, ensure_ascii=False)
    return Message(
        Role.TOOL, text, tool_call_id=data.get("tool_call_id") or None, name=data.get("name") or None
    )


def _json(text: str, label: str) -> JSON:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadRowError(f"{label} is not JSON: {error}") from None
