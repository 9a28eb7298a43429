"""Building blocks for tests about recorded trajectories, and hypothesis strategies for random ones."""

from __future__ import annotations

import json
from collections.abc import Sequence

from hypothesis import strategies as st

from hermes.core import (
    Header,
    JSONObject,
    Message,
    ModelCall,
    Outcome,
    Role,
    Sampling,
    Source,
    Step,
    StepKind,
    StopReason,
    TokenTrace,
    ToolCall,
    ToolErrorKind,
    ToolResult,
    Usage,
    new_id,
)
from hermes.store import Writer

COMPLETED = Outcome(StopReason.COMPLETED)
TOOLS: tuple[JSONObject, ...] = (
    {"name": "calculator", "description": "Computes.", "parameters": {"type": "object", "properties": {}}},
)


def header(model: str = "test/model", source: Source = Source.QUERY, **known: object) -> Header:
    return Header(new_id(), source, model, 1_700_000_000_000, **known)  # type: ignore[arg-type]


def model_call(**changes: object) -> ModelCall:
    base: dict[str, object] = {
        "model": "test/model",
        "endpoint": "http://127.0.0.1/v1",
        "sampling": Sampling(temperature=0.7),
        "finish_reason": "stop",
        "usage": Usage(100, 10, 5, 20, 7),
        "latency_ms": 12.5,
        "cost_usd": 0.25,
    }
    return ModelCall(**{**base, **changes})  # type: ignore[arg-type]


def record(
    writer: Writer,
    messages: Sequence[Message],
    *,
    outcome: Outcome | None = COMPLETED,
    tools: Sequence[JSONObject] = TOOLS,
    call: ModelCall | None = None,
    failed_tools: bool = False,
    **known: object,
) -> str:
    """Writes a trajectory of these messages: assistant ones as model calls, tool ones as results."""
    head = header(**known)
    writer.begin(head)
    done = None
    for index, message in enumerate(messages):
        step = _step(index, message, call or model_call(), failed_tools)
        context = messages[:index] if step.kind is StepKind.MODEL else None
        done = writer.append(head.id, step, context=context, tools=tools if context is not None else ())
    if outcome is not None:
        done = writer.finish(head.id, outcome)
    if done is not None:
        done.result()
    return head.id


def _step(index: int, message: Message, call: ModelCall, failed: bool) -> Step:
    if message.role is Role.ASSISTANT:
        return Step(index, StepKind.MODEL, message, 1, call=call)
    if message.role is Role.TOOL:
        kind = ToolErrorKind.FAILED if failed else None
        result = ToolResult(message.tool_call_id or "", message.name or "", not failed, 3.0, kind)
        return Step(index, StepKind.TOOL, message, 1, result=result)
    return Step(index, StepKind.INPUT, message, 1)


def conversation(question: str = "What is 2 + 2?", answer: str = "It is 4.") -> list[Message]:
    call = ToolCall("call_1", "calculator", json.dumps({"expression": "2 + 2"}))
    return [
        Message.system("You are helpful."),
        Message.user(question),
        Message.assistant("Let me see.", reasoning="A sum.", tool_calls=(call,)),
        Message.tool(call, "4"),
        Message.assistant(answer),
    ]


texts = st.text(max_size=60)
names = st.text("abcdefghijklmnopqrstuvwxyz_", min_size=1, max_size=12)
json_objects = st.dictionaries(
    texts,
    st.recursive(
        st.none()
        | st.booleans()
        | st.integers(-(2**53), 2**53)
        | texts
        | st.floats(allow_nan=False, allow_infinity=False),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
        max_leaves=6,
    ),
    max_size=4,
)
tool_calls = st.builds(
    lambda name, arguments: ToolCall(f"call_{new_id()}", name, json.dumps(arguments)), names, json_objects
)
usages = st.builds(Usage, *[st.integers(0, 10**6)] * 5)
traces = st.lists(st.tuples(st.integers(0, 2**31 - 1), st.floats(-50, 0, width=32)), max_size=8).map(
    lambda pairs: TokenTrace((1, 2, 3), tuple(i for i, _ in pairs), tuple(p for _, p in pairs), "step-3")
)
calls = st.builds(
    model_call,
    usage=usages,
    cost_usd=st.none() | st.floats(0, 10),
    raw=st.none() | json_objects,
    tokens=st.none() | traces,
)


@st.composite
def conversations(draw: st.DrawFn) -> list[Message]:
    """Random but well-formed: parallel calls, answered by id, results sometimes missing at the end."""
    messages = [Message.system(draw(texts))] if draw(st.booleans()) else []
    for _ in range(draw(st.integers(1, 3))):
        messages.append(Message.user(draw(texts)))
        for _ in range(draw(st.integers(0, 2))):
            asked = tuple(draw(st.lists(tool_calls, min_size=1, max_size=3)))
            messages.append(
                Message.assistant(draw(texts), reasoning=draw(st.none() | texts), tool_calls=asked)
            )
            messages.extend(Message.tool(call, draw(texts)) for call in asked)
        messages.append(Message.assistant(draw(texts), reasoning=draw(st.none() | texts)))
    return messages
