"""ShareGPT, Hermes dialect: a trajectory as `conversations` of {from, value} turns.

What is kept: every turn in order; thinking as `<think>`; each tool call as a `<tool_call>` holding one
JSON object; each result as a `<tool_response>` with its call's id and name; the system text and tool
schemas the model was given. What the form cannot hold (token ids, logprobs, sampling, timing, raw
responses) stays in the store; the row's id points there. Nothing is invented: no empty thinking, no
placeholder for a missing result, and a call the model malformed is written as the model wrote it.

The rendering is the one that text-only models are prompted with (models.prompting), so what is
exported is what the parser reads back.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from itertools import groupby

from hermes.core import JSONObject, Message, Role, StepKind, StopReason, Trajectory
from hermes.data.example import Example
from hermes.data.formats.base import Column, Format, ToolCallStyle
from hermes.data.formats.sharegpt_read import read
from hermes.models.parsers import get_parser
from hermes.models.render.prompting import tool_response_text, tool_system_text


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
