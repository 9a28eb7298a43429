"""ShareGPT, Hermes dialect: a trajectory as `conversations` of {from, value} turns.

What is kept: every turn in order; thinking as `<think>`; each tool call as a `<tool_call>` holding one
JSON object; each result as a `<tool_response>` with its call's id and name; the system text and tool
schemas the model was given. What the form cannot hold (token ids, logprobs, sampling, timing, raw
responses) stays in the store; the row's id points there. Nothing is invented: no empty thinking, no
placeholder for a missing result, and a call the model malformed is written as the model wrote it.

The rendering is the one that text-only models are prompted with (models.prompting), so what is
exported is what the parser reads back.

Rows are read: our own exactly, those of hermes-agent as far as possible. Our own rows come back as they were
written, except where the format is ambiguous: text that itself contains the dialect's tags, ids of calls
without a result or with a second result of the same name, and the spacing of results that were JSON. hermes-
agent inserts an empty thinking block where there was none, and a system turn; the model never received or
wrote them, so they are not read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import groupby

from hermes.core import JSON, JSONObject, Message, Role, StepKind, StopReason, Trajectory
from hermes.data.example import Example, build
from hermes.data.formats.base import BadRowError, Column, Format, ToolCallStyle, field
from hermes.data.formats.facts import header_from, number_from, outcome_from
from hermes.data.formats.turns import from_tools
from hermes.models.parsers import get_parser
from hermes.models.render.prompting import tool_response_text, tool_system_text

ROLES = {
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
    if name not in ROLES:
        raise BadRowError(f"turn {index} has the unknown role {json.dumps(name)}")
    if not isinstance(turn.get("value"), str):
        raise BadRowError(f"turn {index} has no text")
    return ROLES[name], turn["value"]


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


class Roles(StrEnum):
    """Role names for `from`; trainers disagree about them."""

    HUMAN_GPT = "human-gpt"
    USER_ASSISTANT = "user-assistant"


_NAMES: dict[Roles, dict[Role, str]] = {
    Roles.HUMAN_GPT: {Role.SYSTEM: "system", Role.USER: "human", Role.ASSISTANT: "gpt", Role.TOOL: "tool"},
    Roles.USER_ASSISTANT: {role: role.value for role in Role},
}


def to_row(
    trajectory: Trajectory,
    tools: Sequence[JSONObject],
    *,
    roles: Roles = Roles.HUMAN_GPT,
    reward: float | None = None,
    rating: float | None = None,
) -> JSONObject:
    """One JSONL row. `tools` are the schemas that the model was given."""
    header, outcome = trajectory.header, trajectory.outcome
    row: JSONObject = {
        "id": header.id,
        "conversations": conversations(trajectory.messages, tools, roles),
        "model": header.model,
        "source": header.source.value,
        "completed": outcome is not None and outcome.stop_reason is StopReason.COMPLETED,
        "outcome": outcome.to_json() if outcome else None,
        "turns": trajectory.turns,
        "tool_names": list(header.tools),
        "tool_stats": tool_stats(trajectory),
        "usage": trajectory.usage.to_json(),
        "cost_usd": trajectory.cost_usd,
        "created_at_ms": header.created_at_ms,
    }
    optional = {
        "run_id": header.run_id,
        "task_id": header.task_id,
        "parent_id": header.parent_id,
        "relation": header.relation.value if header.relation else None,
        "reward": reward,
        "rating": rating,
        "metadata": header.metadata or None,
    }
    return row | {key: value for key, value in optional.items() if value is not None}


def conversations(
    messages: Sequence[Message], tools: Sequence[JSONObject], roles: Roles = Roles.HUMAN_GPT
) -> list[JSONObject]:
    names = _NAMES[roles]
    turns: list[JSONObject] = []
    if tools and not (messages and messages[0].role is Role.SYSTEM):
        turns.append({"from": names[Role.SYSTEM], "value": tool_system_text(tools)})
    for is_tool, group in groupby(messages, lambda message: message.role is Role.TOOL):
        if is_tool:
            turns.append(
                {"from": names[Role.TOOL], "value": "\n".join(_tool_value(result) for result in group)}
            )
            continue
        for message in group:
            first = not turns
            value = (
                _system_value(message, tools) if first and message.role is Role.SYSTEM else _value(message)
            )
            turns.append({"from": names[message.role], "value": value})
    return turns


def tool_stats(trajectory: Trajectory) -> JSONObject:
    """Per tool that was called: count, success, failure."""
    stats: JSONObject = {}
    for step in trajectory.steps:
        if step.kind is StepKind.TOOL and step.result is not None:
            entry = stats.setdefault(step.result.name, {"count": 0, "success": 0, "failure": 0})
            entry["count"] += 1
            entry["success" if step.result.ok else "failure"] += 1
    return stats


def _system_value(message: Message, tools: Sequence[JSONObject]) -> str:
    return f"{message.content}\n\n{tool_system_text(tools)}" if tools else message.content


def _value(message: Message) -> str:
    if message.role is not Role.ASSISTANT:
        return message.content
    parts = []
    if message.reasoning is not None:
        parts.append(f"<think>\n{message.reasoning}\n</think>")
    if message.content:
        parts.append(message.content)
    if message.tool_calls:
        parts.append(get_parser("hermes").render(message.tool_calls))
    return "\n".join(parts)


def _tool_value(message: Message) -> str:
    return tool_response_text(message.tool_call_id or "", message.name or "", message.content)


def _writer(roles: Roles) -> Callable[[Example, ToolCallStyle], Iterator[JSONObject]]:
    def write(example: Example, calls: ToolCallStyle) -> Iterator[JSONObject]:
        for part in example.as_seen():
            yield to_row(
                part.trajectory, part.tools, roles=roles, reward=example.reward, rating=example.rating
            )

    return write


def _format(name: str, roles: Roles, summary: str) -> Format:
    return Format(
        name=name,
        version=1,
        summary=summary,
        columns=_COLUMNS,
        write=_writer(roles),
        read=read,
        keeps=(
            "role, content, thinking, order",
            "calls: name, argument text (where it is a JSON object), id (where a result came)",
            "results: call id, tool name, content (as a JSON value where it is one)",
            "tool schemas; id, model, source, outcome, run_id, task_id, reward, rating, metadata",
        ),
        loses=(
            "ids of calls without a result, text that contains the dialect's own tags, images",
            "spacing of results that are JSON, why a call is malformed",
            "sampling, token ids, logprobs, timing, raw replies",
        ),
    )


_COLUMNS = (
    Column("id", "string", "the trajectory's id in the store"),
    Column("conversations", "turns", "the turns: from and value"),
    Column("model", "string", "provider/model that answered"),
    Column("source", "string", "chat, query, batch, env, delegate or import"),
    Column("completed", "bool", "the model ended its turn by itself"),
    Column("outcome", "outcome", "how it ended; all but stop_reason is null if it completed"),
    Column("turns", "int64", "model calls"),
    Column("tool_names", "strings", "tools that were offered"),
    Column("tool_stats", "json", "calls of each tool: count, success, failure"),
    Column("usage", "usage", "tokens, in five disjoint counters"),
    Column("cost_usd", "double", "null if a price is unknown"),
    Column("created_at_ms", "int64", "Unix time of the start"),
    Column("run_id", "string", "the run it belongs to"),
    Column("task_id", "string", "the task"),
    Column("parent_id", "string", "the trajectory it derives from"),
    Column("relation", "string", "what it is to its parent"),
    Column("reward", "double", "the latest"),
    Column("rating", "double", "the latest, on the 1 to 5 scale"),
    Column("metadata", "json", "carried through from the task"),
)
FORMAT = _format("sharegpt", Roles.HUMAN_GPT, "ShareGPT, Hermes dialect: system, human, gpt, tool")
USER_ASSISTANT = _format(
    "sharegpt-user-assistant", Roles.USER_ASSISTANT, "the same with system, user, assistant, tool"
)
