"""ATIF 1.7, the Agent Trajectory Interchange Format: one document a trajectory.

A step of theirs is a turn: an agent's message with its calls and the results they got. Everything in our
messages survives, in ATIF's own fields where it has one and in `extra` where it does not (argument text that
is not what serialising its value gives, results that answer no call of their turn, images). Each model
call's usage, cost, tokens and logprobs are in `metrics`. Sampling, raw replies and latency are not.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from hermes import __version__
from hermes.core import (
    JSON,
    JSONObject,
    Message,
    ModelCall,
    Role,
    Sampling,
    Step,
    TokenTrace,
    ToolCall,
    Usage,
)
from hermes.data.example import IMPORTED, Example, build
from hermes.data.formats.base import BadRowError, Column, Format, ToolCallStyle, field
from hermes.data.formats.facts import KEPT, facts, header_from, number_from, outcome_from
from hermes.data.formats.turns import from_tools, to_tools

SCHEMA_VERSION = "ATIF-v1.7"
_SOURCES = {Role.SYSTEM: "system", Role.USER: "user", Role.ASSISTANT: "agent"}
_ROLES = {"system": Role.SYSTEM, "user": Role.USER, "agent": Role.ASSISTANT}


def write(example: Example, calls: ToolCallStyle) -> Iterator[JSONObject]:
    header, usage = example.trajectory.header, example.trajectory.usage
    steps = _steps(example)
    agent: JSONObject = {"name": "hermes", "version": __version__, "model_name": header.model}
    if example.tools:
        agent["tool_definitions"] = to_tools(example.tools)
    final: JSONObject = {
        "total_prompt_tokens": usage.prompt,
        "total_completion_tokens": usage.completion,
        "total_cached_tokens": usage.cached_input_tokens,
        "total_steps": len(steps),
    }
    if example.trajectory.cost_usd is not None:
        final["total_cost_usd"] = example.trajectory.cost_usd
    yield {
        "schema_version": SCHEMA_VERSION,
        "session_id": header.session_id or header.id,
        "trajectory_id": header.id,
        "agent": agent,
        "steps": steps,
        "final_metrics": final,
        "extra": {"hermes": {name: value for name, value in facts(example).items() if value is not None}},
    }


def _steps(example: Example) -> list[JSONObject]:
    steps: list[JSONObject] = []
    open_calls: dict[str, ToolCall] = {}
    may_join = False
    for step in example.trajectory.steps:
        message = step.message
        if step.ephemeral:
            continue
        if message.role is Role.TOOL and may_join:
            steps[-1].setdefault("observation", {"results": []})["results"].append(
                _result(message, open_calls)
            )
            continue
        if message.role is Role.TOOL:
            open_calls = {}
            written = {"source": "system", "message": "", "observation": {"results": [_result(message, {})]}}
        else:
            open_calls = {call.id: call for call in message.tool_calls}
            written = _turn(step)
        may_join = message.role in (Role.ASSISTANT, Role.TOOL)
        steps.append({"step_id": len(steps) + 1, **written})
    return steps


def _turn(step: Step) -> JSONObject:
    message = step.message
    data: JSONObject = {"source": _SOURCES[message.role], "message": message.content}
    if step.started_at_ms > 0:
        data["timestamp"] = datetime.fromtimestamp(step.started_at_ms / 1000, UTC).isoformat()
    if message.role is Role.ASSISTANT:
        if message.reasoning is not None:
            data["reasoning_content"] = message.reasoning
        if message.tool_calls:
            data["tool_calls"] = [_call(call) for call in message.tool_calls]
        if step.call is None:
            data["is_copied_context"] = True
        else:
            data |= {"model_name": step.call.model, "metrics": _metrics(step.call), "llm_call_count": 1}
    if message.images:
        data["extra"] = {"images": list(message.images)}
    return data


def _call(call: ToolCall) -> JSONObject:
    extra: JSONObject = {}
    try:
        arguments = call.parsed()
    except (ValueError, RecursionError):
        arguments = {}
    if json.dumps(arguments) != call.arguments:
        extra["arguments_text"] = call.arguments
    if call.error is not None:
        extra["error"] = call.error
    if call.repaired:
        extra["repaired"] = True
    data: JSONObject = {"tool_call_id": call.id, "function_name": call.name, "arguments": arguments}
    return data | ({"extra": extra} if extra else {})


def _result(message: Message, calls: dict[str, ToolCall]) -> JSONObject:
    answered = calls.get(message.tool_call_id or "")
    extra: JSONObject = {}
    if answered is None and message.tool_call_id is not None:
        extra["tool_call_id"] = message.tool_call_id
    if message.name != (answered.name if answered else None):
        extra["name"] = message.name
    if message.images:
        extra["images"] = list(message.images)
    data: JSONObject = {"content": message.content}
    if answered is not None:
        data["source_call_id"] = answered.id
    return data | ({"extra": extra} if extra else {})


def _metrics(call: ModelCall) -> JSONObject:
    usage = call.usage
    data: JSONObject = {
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "cached_tokens": usage.cached_input_tokens,
        "extra": {
            "cache_write_tokens": usage.cache_write_tokens,
            "reasoning_tokens": usage.reasoning_tokens,
            "finish_reason": call.finish_reason,
        },
    }
    if call.cost_usd is not None:
        data["cost_usd"] = call.cost_usd
    if call.tokens is not None:
        data |= {
            "prompt_token_ids": list(call.tokens.prompt_ids),
            "completion_token_ids": list(call.tokens.sampled_ids),
            "logprobs": list(call.tokens.logprobs),
        }
        if call.tokens.policy_version is not None:
            data["extra"]["policy_version"] = call.tokens.policy_version
    return data


def read(row: JSONObject) -> Example:
    version = row.get("schema_version")
    if not isinstance(version, str) or not version.startswith("ATIF-v1."):
        raise BadRowError("'schema_version' is not ATIF-v1.x")
    agent = row.get("agent") or {}
    messages: list[Message] = []
    calls: dict[int, ModelCall] = {}
    for number, step in enumerate(field(row, "steps", list), 1):
        _read_step(step, number, messages, calls, agent.get("model_name") or "unknown")
    if not messages:
        raise BadRowError("'steps' is empty")
    tools = from_tools(agent.get("tool_definitions"))
    ours = (row.get("extra") or {}).get("hermes") or {}
    identity = {"id": row.get("trajectory_id"), "model": agent.get("model_name"), **ours}
    return build(
        header_from(identity, tuple(tool["name"] for tool in tools), row),
        tuple(messages),
        tools=tools,
        outcome=outcome_from(identity),
        reward=number_from(identity, "reward"),
        rating=number_from(identity, "rating"),
        calls=calls,
    )


def _read_step(
    step: JSON, number: int, messages: list[Message], calls: dict[int, ModelCall], model: str
) -> None:
    """Adds the message of one step; the results of an agent's calls follow as messages of their own."""
    if not isinstance(step, dict):
        raise BadRowError(f"step {number} is not an object")
    source = step.get("source")
    if source not in _ROLES:
        raise BadRowError(f"step {number} has the unknown source {json.dumps(source)}")
    results = (step.get("observation") or {}).get("results") or []
    tool_calls = tuple(_read_call(call, number) for call in step.get("tool_calls") or ())
    text = _read_text(step.get("message"), number)
    if source == "agent" and not step.get("is_copied_context"):
        calls[len(messages)] = _read_metrics(step, step.get("model_name") or model)
    if source != "system" or text or not results:
        extra = step.get("extra") or {}
        reasoning = step.get("reasoning_content")
        messages.append(
            Message(_ROLES[source], text, reasoning, tool_calls, images=tuple(extra.get("images") or ()))
        )
    messages += [_read_result(result, tool_calls, number) for result in results]


def _read_call(item: JSON, number: int) -> ToolCall:
    if not isinstance(item, dict) or not isinstance(item.get("function_name"), str):
        raise BadRowError(f"step {number} has a tool call without a name")
    extra = item.get("extra") or {}
    text = extra.get("arguments_text")
    arguments = text if isinstance(text, str) else json.dumps(item.get("arguments") or {})
    call_id, repaired = str(item.get("tool_call_id") or ""), extra.get("repaired") is True
    return ToolCall(call_id, item["function_name"], arguments, extra.get("error"), repaired)


def _read_result(item: JSON, tool_calls: Sequence[ToolCall], number: int) -> Message:
    if not isinstance(item, dict):
        raise BadRowError(f"step {number} has a result that is not an object")
    extra = item.get("extra") or {}
    call_id = item.get("source_call_id") or extra.get("tool_call_id")
    name = next((call.name for call in tool_calls if call.id == item.get("source_call_id")), None)
    return Message(
        Role.TOOL,
        _read_text(item.get("content"), number),
        tool_call_id=call_id,
        name=extra.get("name", name),
        images=tuple(extra.get("images") or ()),
    )


def _read_text(value: JSON, number: int) -> str:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, list):
        return "".join(part.get("text") or "" for part in value if isinstance(part, dict))
    raise BadRowError(f"step {number} has a message that is neither text nor parts")


def _read_metrics(step: JSONObject, model: str) -> ModelCall:
    metrics = step.get("metrics") or {}
    extra = metrics.get("extra") or {}
    cached, written = metrics.get("cached_tokens") or 0, extra.get("cache_write_tokens") or 0
    reasoning = extra.get("reasoning_tokens") or 0
    usage = Usage(
        max((metrics.get("prompt_tokens") or 0) - cached - written, 0),
        cached,
        written,
        max((metrics.get("completion_tokens") or 0) - reasoning, 0),
        reasoning,
    )
    tokens = None
    if metrics.get("completion_token_ids") is not None and metrics.get("logprobs") is not None:
        tokens = TokenTrace(
            tuple(metrics.get("prompt_token_ids") or ()),
            tuple(metrics["completion_token_ids"]),
            tuple(metrics["logprobs"]),
            extra.get("policy_version"),
        )
    finish = extra.get("finish_reason") or "unknown"
    return ModelCall(
        model, IMPORTED, Sampling(), finish, usage, 0.0, cost_usd=metrics.get("cost_usd"), tokens=tokens
    )


FORMAT = Format(
    name="atif",
    version=1,
    summary="ATIF 1.7 documents (Harbor, NeMo): steps with calls, results and metrics",
    columns=(
        Column("schema_version", "string", SCHEMA_VERSION),
        Column("session_id", "string", "the session, or the trajectory's id"),
        Column("trajectory_id", "string", "the trajectory's id in the store"),
        Column("agent", "json", "name, version, model and tools"),
        Column("steps", "json", "the steps"),
        Column("final_metrics", "json", "totals"),
        Column("extra", "json", "what ATIF has no field for, under `hermes`"),
    ),
    write=write,
    read=read,
    keeps=(
        "every message: role, content, thinking, order, images",
        "every call: id, name, argument text verbatim, why it is malformed, whether it was mended",
        "every result: content, call id, tool name",
        "tool schemas",
        "each call's model, usage, cost, token ids, logprobs and policy version",
        KEPT,
    ),
    loses=("sampling, latency, attempts, raw replies, tools' exit codes and durations",),
)
