"""Random whole records: everything that a store can hold about a trajectory."""

from __future__ import annotations

import math
from dataclasses import replace

from hypothesis import strategies as st

from hermes.core import (
    Boundary,
    Header,
    Message,
    Outcome,
    RaterSource,
    Rating,
    RatingKind,
    Relation,
    Reward,
    Role,
    Sampling,
    Source,
    Step,
    StepKind,
    StopReason,
    TokenTrace,
    ToolErrorKind,
    ToolResult,
    Trajectory,
    new_id,
)
from hermes.store import ModelInput, Record
from tests import records
from tests.data import made

texts = made.texts | st.sampled_from(["\ud800", "a\udfffb", "\u2028\x85\x00"])
remarks = records.texts.filter(bool)  # the store takes an empty one for none
verdicts = st.floats(width=32, allow_nan=False) | st.sampled_from([math.inf, -math.inf, 1.0])
samplings = st.builds(
    Sampling,
    temperature=st.none() | st.floats(0, 2),
    top_k=st.none() | st.integers(0, 100),
    stop=st.lists(texts, max_size=2).map(tuple),
    seed=st.none() | st.integers(0, 2**40),
    extra_body=st.none() | records.json_objects,
)
logprobs = st.floats(-50, 0, width=32) | st.just(-math.inf)
traces = st.lists(st.tuples(st.integers(0, 2**31 - 1), logprobs), max_size=6).map(
    lambda pairs: TokenTrace((5, 7), tuple(i for i, _ in pairs), tuple(p for _, p in pairs), "step-3")
)
calls = st.builds(
    records.model_call,
    sampling=samplings,
    usage=records.usages,
    cost_usd=st.none() | st.floats(0, 10),
    first_token_ms=st.none() | st.floats(0, 1e6),
    attempts=st.integers(1, 5),
    raw=st.none() | records.json_objects | texts,
    tokens=st.none() | traces,
    parser=st.none() | records.names,
    tokens_withheld=st.none() | st.just("redacted"),
)
results = st.builds(
    ToolResult,
    texts.filter(lambda text: text.isascii()),
    records.names,
    st.booleans(),
    st.floats(0, 1e6),
    st.none() | st.sampled_from(ToolErrorKind),
    st.none() | st.integers(-1, 255),
    st.integers(0, 10**6),
    st.none() | records.names,
)
outcomes = st.just(made.COMPLETED) | st.builds(
    Outcome,
    st.sampled_from([reason for reason in StopReason if reason is not StopReason.COMPLETED]),
    st.sampled_from(Boundary),
    st.none() | records.names,
    st.none() | remarks,
)


def stepped(draw: st.DrawFn, index: int, message: Message) -> Step:
    at_ms = draw(st.integers(0, 2**42))
    if message.role is Role.ASSISTANT:
        return Step(index, StepKind.MODEL, message, at_ms, call=draw(calls))
    if message.role is Role.TOOL:
        return Step(index, StepKind.TOOL, message, at_ms, result=draw(results))
    return Step(index, StepKind.INPUT, message, at_ms, ephemeral=draw(st.booleans()))


@st.composite
def whole_records(draw: st.DrawFn) -> Record:
    said = [
        replace(message, content=draw(st.just(message.content) | texts)) for message in draw(made.messages())
    ]
    steps = tuple(stepped(draw, index, message) for index, message in enumerate(said))
    header = Header(
        id=new_id(),
        source=draw(st.sampled_from(Source)),
        model=draw(records.names),
        created_at_ms=draw(st.integers(1, 2**42)),
        session_id=draw(st.none() | records.names),
        run_id=draw(st.none() | records.names),
        task_id=draw(st.none() | records.texts),
        sample_index=draw(st.integers(0, 9)),
        parent_id=draw(st.none() | st.just(new_id())),
        relation=draw(st.none() | st.sampled_from(Relation)),
        tools=tuple(draw(st.lists(records.names, max_size=3))),
        config=draw(records.json_objects),
        metadata=draw(records.json_objects),
    )
    schemas = draw(made.schemas)
    seen = st.builds(
        ModelInput,
        st.integers(0, len(said)).map(lambda end: tuple(said[:end])) | st.permutations(said).map(tuple),
        st.sampled_from([(), schemas]),
    ).filter(lambda each: bool(each.messages or each.tools))
    inputs = {step.index: draw(seen) for step in steps if step.call and draw(st.booleans())}
    rewards = st.builds(Reward, st.just(header.id), verdicts, records.names, records.json_objects)
    return Record(
        Trajectory(header, steps, draw(outcomes)),
        inputs,
        tuple(draw(st.lists(rewards, max_size=2))),
        tuple(draw(_ratings(header.id))),
        draw(st.integers(1, 2**42)),
    )


@st.composite
def _ratings(draw: st.DrawFn, trajectory_id: str) -> list[Rating]:
    """Some of them withdrawn by the one after them."""
    found: list[Rating] = []
    withdraws = draw(st.lists(st.booleans(), max_size=3))
    for withdraw in withdraws:
        rating = Rating(
            new_id(),
            trajectory_id,
            draw(st.sampled_from(RatingKind)),
            draw(verdicts),
            draw(records.names),
            draw(st.integers(0, 2**42)),
            other_id=draw(st.none() | st.just(new_id())),
            step_index=draw(st.none() | st.integers(0, 5)),
            comment=draw(st.none() | remarks),
            elapsed_ms=draw(st.none() | st.floats(0, 1e6)),
            replaces=found[-1].id if found and withdraw else None,
            other_step=draw(st.none() | st.integers(0, 5)),
            shown_first=draw(st.none() | st.just(trajectory_id)),
            source=draw(st.sampled_from(RaterSource)),
            labels=tuple(draw(st.lists(remarks, max_size=2))),
            queue=draw(st.none() | records.names),
            item=draw(st.none() | records.names),
        )
        found.append(rating)
    return found
