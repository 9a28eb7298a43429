"""Rows of the format `record` as records again, with every value checked against the type of its field."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hermes.core import (
    Header,
    JSONObject,
    Message,
    ModelCall,
    Outcome,
    Rating,
    RatingKind,
    Relation,
    Reward,
    Source,
    Step,
    StepKind,
    TokenTrace,
    ToolResult,
    Trajectory,
)
from hermes.data.formats.base import BadRowError, field
from hermes.data.typed import problem
from hermes.store import ModelInput, Record

_LARGEST_TOKEN = 2**31 - 1


def from_row(row: JSONObject) -> Record:
    """BadRowError, or the error of a constructor, if the row is not a record."""
    header = _header(field(row, "header", dict))
    messages = [Message.from_json(item) for item in field(row, "messages", list)]
    schemas = field(row, "tool_schemas", list)
    rows = field(row, "steps", list)
    steps = tuple(_step(item, messages) for item in rows)
    inputs = {
        item["index"]: ModelInput(
            tuple(messages[index] for index in _indices(item.get("context", ()), len(messages))),
            tuple(schemas[_position(item["tools"], len(schemas))]) if "tools" in item else (),
        )
        for item in rows
        if "context" in item or "tools" in item
    }
    rewards = [Reward(**_verdict(item, header)) for item in field(row, "rewards", list)]
    ratings = [
        Rating(**{**_verdict(item, header), "kind": RatingKind(item["kind"])})
        for item in field(row, "ratings", list)
    ]
    outcome = Outcome.from_json(field(row, "outcome", dict))
    trajectory = Trajectory(header, steps, outcome)
    finished_at_ms = row.get("finished_at_ms")  # a table has no nulls
    record = Record(trajectory, inputs, tuple(rewards), tuple(ratings), finished_at_ms)
    mismatch = _problem(record)
    if mismatch is not None:
        raise BadRowError(mismatch)
    return record


def _header(data: JSONObject) -> Header:
    relation = data["relation"]
    typed = {
        "source": Source(data["source"]),
        "relation": Relation(relation) if relation is not None else None,
        "tools": tuple(data["tools"]),
    }
    return Header(**{**data, **typed})


def _step(data: JSONObject, messages: Sequence[Message]) -> Step:
    kind = StepKind(data["kind"])
    call, result = data.get("call"), data.get("result")
    if (call is None) == (kind is StepKind.MODEL) or (result is None) == (kind is StepKind.TOOL):
        raise BadRowError(f"step {data['index']} is of kind {kind.value}, but has not what that has")
    return Step(
        index=data["index"],
        kind=kind,
        message=messages[_position(data["message"], len(messages))],
        started_at_ms=data["started_at_ms"],
        call=_call(call) if call is not None else None,
        result=ToolResult.from_json(result) if result is not None else None,
        ephemeral=data.get("ephemeral", False),
    )


def _call(data: JSONObject) -> ModelCall:
    tokens = data["tokens"]
    body = {name: value for name, value in data.items() if name not in ("raw", "tokens")}
    trace = None
    if tokens is not None:
        trace = TokenTrace(
            tuple(tokens["prompt_ids"]),
            tuple(tokens["sampled_ids"]),
            tuple(map(float, tokens["logprobs"])),
            tokens["policy_version"],
        )
    return ModelCall.from_json(body, data["raw"], trace)


def _verdict(data: JSONObject, header: Header) -> JSONObject:
    return {**data, "trajectory_id": header.id, "value": float(data["value"])}


def _indices(spans: Iterable[Sequence[int]], length: int) -> Iterator[int]:
    for first, behind in spans:
        _position(first, length)
        _position(behind - 1, length)
        yield from range(first, behind)


def _position(index: int, length: int) -> int:
    if not 0 <= index < length:
        raise BadRowError(f"position {index} of {length}")
    return index


def _problem(record: Record) -> str | None:
    """The first value that is of another type than its field, or that the store has no room for."""
    trajectory = record.trajectory
    indices = [step.index for step in trajectory.steps]
    if sorted(set(indices)) != indices:
        return "the steps' indices do not rise"
    for step in trajectory.steps:
        tokens = step.call.tokens if step.call else None
        ids = (*tokens.prompt_ids, *tokens.sampled_ids) if tokens else ()
        if any(not isinstance(text, int) or abs(text) > _LARGEST_TOKEN for text in ids):
            return f"step {step.index} has token ids that are none"
    parts = (
        ("header", trajectory.header, Header),
        ("steps", tuple(trajectory.steps), tuple[Step, ...]),
        ("outcome", trajectory.outcome, Outcome),
        ("finished_at_ms", record.finished_at_ms, int | None),
        ("rewards", record.rewards, tuple[Reward, ...]),
        ("ratings", record.ratings, tuple[Rating, ...]),
    )
    problems = (problem(value, hint, name) for name, value, hint in parts)
    return next((text for text in problems if text is not None), None)
