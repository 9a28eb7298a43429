"""Random trajectories for tests of formats: parallel calls, malformed ones, missing results, odd text."""

from __future__ import annotations

import json
from dataclasses import replace

from hypothesis import strategies as st

from hermes.core import (
    Boundary,
    Header,
    Message,
    Outcome,
    Rating,
    RatingKind,
    Relation,
    Role,
    Source,
    Step,
    StepKind,
    StopReason,
    TokenTrace,
    ToolCall,
    ToolResult,
    Trajectory,
    new_id,
)
from hermes.data.example import Example
from tests import records

COMPLETED = Outcome(StopReason.COMPLETED)
SAMPLED = "human gpt tool <|im_start|> é 漢字 \u2028 \x85 \x00 \t\r\n"
texts = st.text(max_size=40) | st.sampled_from(
    ["", " ", "\n", "\n\n", '{"a": 1}', "[1, 2]", "null", SAMPLED, "</think>", "<tool_call>", "x" * 3000]
)
schemas = st.lists(
    st.builds(
        lambda name, description, properties: {
            "name": name,
            "description": description,
            "parameters": {"type": "object", "properties": properties},
        },
        records.names,
        texts,
        records.json_objects,
    ),
    max_size=3,
    unique_by=lambda tool: tool["name"],
).map(tuple)
broken_calls = st.builds(
    lambda name, text: ToolCall(f"call_{new_id()}", name, text, error="not a JSON object"),
    records.names,
    st.sampled_from(["", "{", '{"a": ', "[1]", "nonsense", "<tool_call>\n{oops}\n</tool_call>"]),
)
spaced_calls = st.builds(
    lambda call, indent: replace(call, arguments=json.dumps(json.loads(call.arguments), indent=indent)),
    records.tool_calls,
    st.sampled_from([1, 2]),
)
calls = records.tool_calls | spaced_calls | broken_calls


@st.composite
def messages(draw: st.DrawFn) -> list[Message]:
    """Conversations as they come: empty turns, parallel calls, results missing or answering nothing."""
    found = [Message.system(draw(texts))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        if draw(st.integers(0, 5)):
            found.append(
                Message(Role.USER, draw(texts), images=draw(st.sampled_from([(), ("http://x/i.png",)])))
            )
        for _ in range(draw(st.integers(0, 2))):
            asked = tuple(draw(st.lists(calls, min_size=1, max_size=3)))
            found.append(Message.assistant(draw(texts), reasoning=draw(st.none() | texts), tool_calls=asked))
            found.extend(Message.tool(call, draw(texts)) for call in asked if draw(st.integers(0, 4)))
        if not draw(st.integers(0, 9)):
            found.append(Message(Role.TOOL, draw(texts), tool_call_id="call_orphan", name="ghost"))
        found.append(Message.assistant(draw(texts), reasoning=draw(st.none() | texts)))
    return found


@st.composite
def examples(draw: st.DrawFn) -> Example:
    said = draw(messages())
    tools = draw(schemas)
    header = Header(
        id=new_id(),
        source=draw(st.sampled_from(Source)),
        model=draw(st.sampled_from(["a/b", "hermes/smollm2"])),
        created_at_ms=draw(st.integers(1, 2**42)),
        run_id=draw(st.none() | records.names),
        task_id=draw(st.none() | texts),
        parent_id=draw(st.none() | st.just(new_id())),
        relation=draw(st.none() | st.sampled_from(Relation)),
        tools=tuple(tool["name"] for tool in tools),
        metadata=draw(records.json_objects),
    )
    outcome = draw(st.sampled_from([COMPLETED, Outcome(StopReason.MAX_TURNS, Boundary.LIMIT, "E", "why")]))
    steps = tuple(_step(index, message, draw) for index, message in enumerate(said))
    ratings = tuple(
        Rating(new_id(), header.id, kind, value, "ann", number, step_index=index)
        for number, (kind, value, index) in enumerate(draw(_verdicts(len(said))))
    )
    return Example(
        Trajectory(header, steps, outcome),
        tools,
        draw(st.none() | st.floats(-1, 1)),
        draw(st.none() | st.integers(1, 5).map(float)),
        ratings,
    )


def _verdicts(steps: int) -> st.SearchStrategy[list[tuple[RatingKind, float, int | None]]]:
    index = st.none() | st.integers(0, steps - 1)
    return st.lists(
        st.tuples(st.just(RatingKind.THUMB), st.sampled_from([1.0, -1.0]), index)
        | st.tuples(st.just(RatingKind.SCORE), st.integers(1, 5).map(float), index)
        | st.tuples(st.just(RatingKind.STEP), st.sampled_from([1.0, 0.0, -1.0]), st.integers(0, steps - 1)),
        max_size=4,
    )


def _step(index: int, message: Message, draw: st.DrawFn) -> Step:
    at_ms = 1_700_000_000_000 + index
    if message.role is Role.ASSISTANT:
        return Step(index, StepKind.MODEL, message, at_ms, call=draw(records.calls))
    if message.role is Role.TOOL:
        result = ToolResult(message.tool_call_id or "", message.name or "", True, 1.0)
        return Step(index, StepKind.TOOL, message, at_ms, result=result)
    return Step(index, StepKind.INPUT, message, at_ms)


def example(said: list[Message], **known: object) -> Example:
    """A plain example of these messages."""
    facts: dict[str, object] = {"tools": records.TOOLS, "outcome": COMPLETED, "reward": None, "rating": None}
    given = facts | {name: known.pop(name) for name in list(known) if name in facts or name == "ratings"}
    header = replace(records.header(), **known)  # type: ignore[arg-type]
    steps = tuple(_plain_step(index, message) for index, message in enumerate(said))
    outcome = given.pop("outcome")
    return Example(Trajectory(header, steps, outcome), **given)  # type: ignore[arg-type]


def _plain_step(index: int, message: Message) -> Step:
    if message.role is Role.ASSISTANT:
        return Step(index, StepKind.MODEL, message, 1, call=records.model_call())
    if message.role is Role.TOOL:
        result = ToolResult(message.tool_call_id or "", message.name or "", True, 1.0)
        return Step(index, StepKind.TOOL, message, 1, result=result)
    return Step(index, StepKind.INPUT, message, 1)


def traced(example: Example, traces: list[TokenTrace | None]) -> Example:
    """The example with these tokens on its model calls."""
    given = iter(traces)
    steps = tuple(
        replace(step, call=replace(step.call, tokens=next(given))) if step.call else step
        for step in example.trajectory.steps
    )
    return replace(example, trajectory=replace(example.trajectory, steps=steps))
