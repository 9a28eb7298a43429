"""The whole record of a trajectory: everything the store holds about it, so that it can be restored in
another store.

As in the store, each message and each set of tool schemas is there once, and steps point at them: `message`
is a position in `messages`, `context` (the input of a model call) is spans of positions `[first, behind
last]`, `tools` a position in `tool_schemas`. A number that JSON cannot write (an infinite logprob) is a
text. A row is read only if it is, to the last field, what this version would write.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict

from hermes.core import (
    JSON,
    Header,
    JSONObject,
    Message,
    ModelCall,
    Outcome,
    RaterSource,
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
    ordered_json,
)
from hermes.data.example import Example
from hermes.data.formats.base import BadRowError, Column, Format, ToolCallStyle, field
from hermes.data.typed import problem
from hermes.store import ModelInput, Record

_LARGEST_TOKEN = 2**31 - 1
_LATER_FIELDS: JSONObject = {
    "other_step": None,
    "shown_first": None,
    "source": RaterSource.PERSON,
    "labels": (),
    "queue": None,
    "item": None,
}
"""Later fields of a rating, with the values that a row without them stands for."""

_SCALE: dict[RatingKind, Callable[[float], float]] = {
    RatingKind.SCORE: float,
    RatingKind.THUMB: lambda value: 5.0 if value > 0 else 1.0,
}
"""Kinds of ratings that have a place on the 1…5 scale."""

VERSION = 1


def write(example: Example, calls: ToolCallStyle) -> Iterator[JSONObject]:
    ratings = tuple(rating for rating in example.ratings if rating.trajectory_id == example.id)
    yield to_row(example.record or Record(example.trajectory, ratings=ratings))


def read(row: JSONObject) -> Example:
    version = row.get("record_version")
    if version != VERSION:
        raise BadRowError(f"record_version is {version!r}; this version of Hermes reads {VERSION}")
    record = from_row(row)
    changed = differing_fields(to_row(record), row)
    if changed:
        raise BadRowError(f"{', '.join(changed)}: not as a record of version {VERSION} has it")
    first = next((record.inputs[step.index].tools for step in _model_steps(record)), ())
    return Example(record.trajectory, first, ratings=record.ratings, record=record)


def latest_reward(record: Record) -> float | None:
    """The newest one that is no opinion of a reward model, as the store's own queries take it."""
    values = [reward.value for reward in record.rewards if not reward.source.startswith("reward-model:")]
    return values[-1] if values else None


def latest_rating(record: Record) -> float | None:
    """On the 1…5 scale: the newest verdict of a person; without one, the newest of a rule or a model."""
    replaced = {rating.replaces for rating in record.ratings}
    ratings = [rating for rating in record.ratings if rating.kind in _SCALE and rating.id not in replaced]
    people = [rating for rating in ratings if rating.source is RaterSource.PERSON]
    latest = next(reversed(people or ratings), None)
    return None if latest is None else _SCALE[latest.kind](latest.value)


def to_row(record: Record) -> JSONObject:
    trajectory = record.trajectory
    messages, schemas = _UniqueValues(), _UniqueValues()
    steps = [_step_row(step, record.inputs.get(step.index), messages, schemas) for step in trajectory.steps]
    return {
        "record_version": VERSION,
        "header": {**asdict(trajectory.header), "tools": list(trajectory.header.tools)},
        "messages": messages.values,
        "tool_schemas": schemas.values,
        "steps": steps,
        "outcome": trajectory.outcome.to_json() if trajectory.outcome else None,
        "finished_at_ms": record.finished_at_ms,
        "rewards": [_verdict_row(asdict(reward)) for reward in record.rewards],
        "ratings": [_rating_row(rating) for rating in record.ratings],
    }


def differing_fields(left: JSONObject, right: JSONObject) -> list[str]:
    """Fields of two rows that are not the same."""
    return sorted(name for name in left.keys() | right.keys() if left.get(name) != right.get(name))


def without_tokens(row: JSONObject) -> JSONObject:
    """The row after a redaction: token ids would spell out the redacted text."""
    steps = []
    for step in row["steps"]:
        call = step.get("call")
        withheld = call and call["tokens"] and {**call, "tokens": None, "tokens_withheld": "redacted"}
        steps.append({**step, "call": withheld} if withheld else step)
    return {**row, "steps": steps}


class _UniqueValues:
    """Values, each of them once, by their position."""

    def __init__(self) -> None:
        self.values: list[JSON] = []
        self._indices: dict[str, int] = {}

    def index_of(self, value: JSON) -> int:
        key = ordered_json(value)
        if key not in self._indices:
            self._indices[key] = len(self.values)
            self.values.append(value)
        return self._indices[key]


def _step_row(
    step: Step, model_input: ModelInput | None, messages: _UniqueValues, schemas: _UniqueValues
) -> JSONObject:
    # The input comes first: in this order a context is mostly one span.
    context = (
        [messages.index_of(message.to_json()) for message in model_input.messages] if model_input else []
    )
    row: JSONObject = {
        "index": step.index,
        "kind": step.kind.value,
        "message": messages.index_of(step.message.to_json()),
        "started_at_ms": step.started_at_ms,
    }
    if step.ephemeral:
        row["ephemeral"] = True
    if step.result is not None:
        row["result"] = step.result.to_json()
    if step.call is not None:
        row["call"] = _call_row(step.call)
    if context:
        row["context"] = _spans(context)
    if model_input and model_input.tools:
        row["tools"] = schemas.index_of(list(model_input.tools))
    return row


def _call_row(call: ModelCall) -> JSONObject:
    sampling = call.sampling.to_json()
    if "stop" in sampling:
        sampling["stop"] = list(sampling["stop"])
    return {**call.to_json(), "sampling": sampling, "raw": call.raw, "tokens": _tokens_row(call.tokens)}


def _tokens_row(tokens: TokenTrace | None) -> JSONObject | None:
    if tokens is None:
        return None
    return {
        "prompt_ids": list(tokens.prompt_ids),
        "sampled_ids": list(tokens.sampled_ids),
        "logprobs": [_json_number(logprob) for logprob in tokens.logprobs],
        "policy_version": tokens.policy_version,
    }


def _verdict_row(verdict: JSONObject) -> JSONObject:
    """The verdict belongs to the trajectory of its row, whose id is not repeated."""
    del verdict["trajectory_id"]
    return {**verdict, "value": _json_number(verdict["value"])}


def _rating_row(rating: Rating) -> JSONObject:
    """Fields that came with a later version are written only where they say something."""
    row = _verdict_row(asdict(rating))
    for name, default in _LATER_FIELDS.items():
        if row[name] == default:
            del row[name]
    return {**row, "labels": list(rating.labels)} if rating.labels else row


def _json_number(number: float) -> float | str:
    return number if math.isfinite(number) else str(number)


def _spans(indices: Sequence[int]) -> list[list[int]]:
    spans: list[list[int]] = []
    for index in indices:
        if spans and spans[-1][1] == index:
            spans[-1][1] += 1
        else:
            spans.append([index, index + 1])
    return spans


def _model_steps(record: Record) -> Iterator[Step]:
    """The model steps whose input was recorded."""
    return (
        step
        for step in record.trajectory.steps
        if step.kind is StepKind.MODEL and step.index in record.inputs
    )


FORMAT = Format(
    name="record",
    version=VERSION,
    summary="the whole record, for another store: nothing is lost",
    columns=(
        Column("record_version", "int64", "of the row's layout"),
        Column("header", "json", "who ran it and how: id, source, model, run, parent, relation, config …"),
        Column("messages", "json", "every message that was said or seen, once"),
        Column("tool_schemas", "json", "every set of tools that was offered, once"),
        Column("steps", "json", "what happened: messages, model calls with their input and tokens, results"),
        Column("outcome", "json", "how it ended"),
        Column("finished_at_ms", "int64", "when"),
        Column("rewards", "json", "all of them"),
        Column("ratings", "json", "all of them, withdrawn ones included"),
    ),
    write=write,
    read=read,
    keeps=(
        "the header: id, source, model, time, session, run, task, sample, parent, relation, config, metadata",
        "every step, ephemeral ones too: its message with calls and images, its time, its tool's result",
        "every model call: what it saw, sampling, usage, cost, latency, attempts, raw reply",
        "token ids, logprobs (infinite ones too), policy versions",
        "every reward and every rating, withdrawn ones too; the outcome, and when it was written",
        "every text to the last code unit, lone surrogates included",
    ),
    loses=("nothing; but what redaction takes away is gone (`--redact none` leaves it)",),
    whole=True,
)


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
    ratings = [_rating(item, header) for item in field(row, "ratings", list)]
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
        raise BadRowError(
            f"step {data['index']} is a {kind.value} step; a model step needs 'call', a tool step 'result'"
        )
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


def _rating(data: JSONObject, header: Header) -> Rating:
    labels = data.get("labels", ())
    typed = {
        "kind": RatingKind(data["kind"]),
        "source": RaterSource(data.get("source", RaterSource.PERSON)),
        "labels": tuple(labels) if isinstance(labels, list | tuple) else labels,
    }
    return Rating(**{**_verdict(data, header), **typed})


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
        if any(not isinstance(token, int) or abs(token) > _LARGEST_TOKEN for token in ids):
            return f"step {step.index} has a token id that is not a whole number of 32 bits"
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
