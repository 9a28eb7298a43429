"""Stores of rated trajectories, drawn at random."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from hermes.core import (
    Header,
    Message,
    RaterSource,
    Rating,
    RatingKind,
    Relation,
    Role,
    Source,
    Step,
    StepKind,
    ToolCall,
    ToolResult,
    new_id,
)
from hermes.store import Writer
from tests import records

PENDING: list[Future[None]] = []
"""Ratings that are on their way to the disk: one flush for many."""


@dataclass
class Recorded:
    """A trajectory as a test wrote it: what each step is, and what each call saw."""

    id: str
    steps: list[Step]
    contexts: dict[int, tuple[Message, ...]]
    ratings: list[Rating] = field(default_factory=list)

    @property
    def answers(self) -> list[int]:
        return [step.index for step in self.steps if step.kind is StepKind.MODEL]

    def before(self, index: int) -> tuple[Message, ...]:
        """What the call of that step saw; before an answer that was copied, the conversation."""
        messages = (step.message for step in self.steps[:index] if not step.ephemeral)
        return self.contexts.get(index) or tuple(messages)

    def turn(self, index: int) -> list[Step]:
        """The steps of the turn that a model step belongs to."""
        first = last = next(i for i, step in enumerate(self.steps) if step.index == index)
        while self.steps[first - 1].message.role in (Role.ASSISTANT, Role.TOOL):
            first -= 1
        while last + 1 < len(self.steps) and self.steps[last + 1].message.role in (Role.ASSISTANT, Role.TOOL):
            last += 1
        return self.steps[first : last + 1]


def write(
    writer: Writer,
    turns: Sequence[tuple[str, Sequence[str]]],
    *,
    history: Sequence[Message] = (),
    examples: bool = False,
    memory: str = "",
    parent: str | None = None,
    relation: Relation | None = None,
) -> Recorded:
    """A chat: (question, texts of the assistant; all but the last one call a tool). What the model saw has
    examples and a remembered fact that the dataset's version lacks."""
    header = Header(new_id(), Source.CHAT, "test/model", 1, parent_id=parent, relation=relation)
    writer.begin(header)
    recorded = Recorded(header.id, [], {})
    seen: list[Message] = []

    def add(
        kind: StepKind, message: Message, *, as_seen: Message | None = None, ephemeral: bool = False
    ) -> None:
        index = len(recorded.steps)
        call = records.model_call() if kind is StepKind.MODEL else None
        result = ToolResult(message.tool_call_id or "", "calc", True, 1.0) if kind is StepKind.TOOL else None
        step = Step(index, kind, message, index, call=call, result=result, ephemeral=ephemeral)
        context = tuple(seen) if call else None
        if context is not None:
            recorded.contexts[index] = context
        writer.append(header.id, step, context=context, tools=records.TOOLS if call else ())
        recorded.steps.append(step)
        seen.append(as_seen or message)

    add(StepKind.INPUT, Message.system("Be kind."), as_seen=Message.system(f"Be kind.{memory}"))
    if examples:
        add(StepKind.INPUT, Message.user("1+1?"), ephemeral=True)
        add(StepKind.INPUT, Message.assistant("2"), ephemeral=True)
    for message in history:
        add(StepKind.INPUT, message)
    for question, texts in turns:
        add(StepKind.INPUT, Message.user(question))
        for position, text in enumerate(texts):
            last = position == len(texts) - 1
            call = ToolCall(f"c{new_id()}", "calc", '{"x": 1}')
            add(StepKind.MODEL, Message.assistant(text, tool_calls=() if last else (call,)))
            if not last:
                add(StepKind.TOOL, Message.tool(call, f"result of {text}"))
    writer.finish(header.id, records.COMPLETED)
    return recorded


texts = st.sampled_from(["yes", "no", "4", "5"])


chats = st.lists(
    st.tuples(st.sampled_from(["q1", "q2"]), st.lists(texts, min_size=1, max_size=3)), min_size=1, max_size=3
)


@st.composite
def stores(draw: st.DrawFn, writer: Writer) -> list[Recorded]:
    """Chats that begin alike, retries, a sub-agent; ratings of all kinds, some replaced or withdrawn."""
    base = draw(chats)
    examples, memory = draw(st.booleans()), draw(st.sampled_from(["", " The user is Ann."]))
    chosen = []
    for _ in range(draw(st.integers(2, 4))):
        cut = draw(st.integers(0, len(base)))
        turns = base[:cut] + draw(
            st.lists(st.tuples(st.just("q1"), st.lists(texts, min_size=1, max_size=2)), max_size=2)
        )
        other_memory = draw(st.booleans()) and draw(st.booleans())
        chosen.append(
            write(writer, turns or base, examples=examples, memory=" Else." if other_memory else memory)
        )
    first = chosen[0]
    if draw(st.booleans()):  # a retry of the last turn: the history is input
        last = first.turn(first.answers[-1])[0].index
        history = [step.message for step in first.steps[1 : last - 1] if not step.ephemeral]
        question = first.steps[last - 1].message.content
        chosen.append(
            write(
                writer,
                [(question, draw(st.lists(texts, min_size=1, max_size=2)))],
                history=history,
                parent=first.id,
                relation=Relation.RETRY,
            )
        )
    if draw(st.booleans()):
        chosen.append(write(writer, draw(chats), parent=first.id, relation=Relation.DELEGATE))
    for number in range(draw(st.integers(0, 8))):
        add_rating(draw, writer, chosen, number)
    return chosen


def add_rating(draw: st.DrawFn, writer: Writer, chosen: list[Recorded], number: int) -> None:
    target = draw(st.sampled_from(chosen))
    others = [recorded for recorded in chosen if recorded is not target]
    kind = draw(st.sampled_from(RatingKind))
    rating = Rating(
        new_id(),
        target.id,
        kind,
        -1.0,
        draw(st.sampled_from(["ann", "bob"])),
        number,
        source=draw(st.sampled_from([RaterSource.PERSON, RaterSource.PERSON, RaterSource.JUDGE])),
    )
    step = draw(st.sampled_from(target.answers))
    if kind is RatingKind.WITHDRAW:
        if not target.ratings:
            return
        replaced = draw(st.sampled_from(target.ratings))
        target.ratings.remove(replaced)
        rating = replace(rating, value=0.0, replaces=replaced.id)
    elif kind is RatingKind.SCORE:
        rating = replace(
            rating, value=float(draw(st.integers(1, 5))), step_index=draw(st.sampled_from([None, step]))
        )
    elif kind is RatingKind.THUMB:
        rating = replace(
            rating, value=draw(st.sampled_from([1.0, -1.0])), step_index=draw(st.sampled_from([None, step]))
        )
    elif kind in (RatingKind.STEP, RatingKind.FIRST_BAD):
        value = draw(st.sampled_from([1.0, 0.0, -1.0])) if kind is RatingKind.STEP else -1.0
        rating = replace(rating, value=value, step_index=step)
    else:
        other = draw(st.sampled_from(others))
        named = draw(st.booleans())
        rating = replace(
            rating,
            value=draw(st.sampled_from([1.0, 0.5, 0.0, -1.0])) if kind is RatingKind.PAIR else -1.0,
            other_id=other.id,
            step_index=step if named else None,
            other_step=draw(st.sampled_from(other.answers)) if named else None,
        )
    if kind is not RatingKind.WITHDRAW and target.ratings and draw(st.integers(0, 3)) == 0:
        replaced = draw(st.sampled_from(target.ratings))
        target.ratings.remove(replaced)
        rating = replace(rating, replaces=replaced.id)
    PENDING.append(writer.add_rating(rating))
    if kind is not RatingKind.WITHDRAW:
        target.ratings.append(rating)
