"""Formats read and write examples: a trajectory, its tools, its reward and its ratings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from hermes.core import (
    Boundary,
    Header,
    JSONObject,
    Message,
    ModelCall,
    Outcome,
    Rating,
    Role,
    Sampling,
    Step,
    StepKind,
    StopReason,
    ToolResult,
    Trajectory,
    Usage,
)
from hermes.core.message import hide_thinking, pair_results
from hermes.errors import UsageError
from hermes.store import Reader, Record

IMPORTED = "imported"
"""The endpoint of an imported model call."""


class SeenPart(NamedTuple):
    """Messages of a conversation, and those before them as their first answer was shown them."""

    prompt: tuple[Message, ...]
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Example:
    """One unit of training data before it takes a format's shape."""

    trajectory: Trajectory
    tools: tuple[JSONObject, ...] = ()
    """Schemas of the tools offered at the first model call: name, description, parameters."""
    reward: float | None = None
    """The latest one."""
    rating: float | None = None
    """The latest one, on the 1…5 scale."""
    ratings: tuple[Rating, ...] = ()
    """All that no later rating replaces; also choices in which it is the other trajectory."""
    record: Record | None = None
    """All that the store holds, for the format that writes it."""
    unseen: frozenset[tuple[int, int]] = frozenset()
    """Pairs (i, j): the call that wrote message i was not shown the thinking of message j before it."""

    @property
    def id(self) -> str:
        return self.trajectory.header.id

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.trajectory.messages

    def before(self, position: int) -> tuple[Message, ...]:
        """The messages before that one, as the model was shown them."""
        hidden = {earlier for answer, earlier in self.unseen if answer == position}
        return hide_thinking(self.messages[:position], hidden)

    def unseen_within(self, start: int, stop: int) -> frozenset[tuple[int, int]]:
        """`unseen` of the messages from `start` to `stop`, the first of which becomes 0."""
        return frozenset(
            (answer - start, earlier - start)
            for answer, earlier in self.unseen
            if start <= earlier and answer < stop
        )

    def seen_parts(self, start: int, stop: int) -> Iterator[SeenPart]:
        """The messages from `start` to `stop`, in parts whose answers saw exactly what stands before them."""
        messages, steps = self.messages, [step for step in self.trajectory.steps if not step.ephemeral]
        hidden: defaultdict[int, set[int]] = defaultdict(set)
        for answer, earlier in self.unseen:
            hidden[answer].add(earlier)
        begin, prompt = start, self.before(start)
        context = prompt
        for index in range(start + 1, stop):
            if steps[index].kind is not StepKind.MODEL:
                continue
            context += messages[len(context) : index]
            before = hide_thinking(messages[:index], hidden[index])
            if before != context:
                yield SeenPart(prompt, begin, index)
                begin, prompt, context = index, before, before
        yield SeenPart(prompt, begin, stop)

    def as_seen(self) -> Iterator[Example]:
        """The example as conversations that show a model exactly what it saw.

        One, where every call was shown the thinking of the answers before it. Elsewhere a call that was not
        begins a new one, in which the answers before it are input and no longer answers to learn.
        """
        if not self.unseen:
            yield self
            return
        steps = [step for step in self.trajectory.steps if not step.ephemeral]
        first = next(index for index, step in enumerate(steps) if step.kind is StepKind.MODEL)
        for prompt, start, end in self.seen_parts(first, len(steps)):
            yield self._part(steps[:end], start, (*prompt, *self.messages[start:end]))

    def _part(self, steps: Sequence[Step], start: int, messages: Sequence[Message]) -> Example:
        """The steps with these messages; answers before `start` are input."""
        part = tuple(
            replace(step, kind=StepKind.INPUT, call=None, message=message)
            if index < start and step.kind is StepKind.MODEL
            else replace(step, message=message)
            for index, (step, message) in enumerate(zip(steps, messages, strict=True))
        )
        return replace(self, trajectory=replace(self.trajectory, steps=part), unseen=frozenset())

    @property
    def prompt(self) -> str:
        """The first user message."""
        return next((message.content for message in self.messages if message.role is Role.USER), "")

    @property
    def task(self) -> str:
        """Equal for attempts at the same task."""
        header = self.trajectory.header
        return task_key(header.run_id, header.task_id, self.prompt)


class UnfitError(ValueError):
    """An example that a format cannot hold; the message is the reason, counted in the report."""


def task_key(run_id: str | None, task_id: str | None, prompt: str) -> str:
    """The task's id within its run, else the first user message."""
    return f"text:{prompt}" if task_id is None else f"task:{run_id or ''}:{task_id}"


def load(reader: Reader, trajectory: Trajectory) -> Example:
    """The trajectory with its tools and verdicts."""
    trajectory_id = trajectory.header.id
    reward, rating = reader.verdicts(trajectory_id)
    ratings = tuple(reader.ratings_about(trajectory_id))
    tools = reader.offered_tools(trajectory_id)
    return Example(trajectory, tools, reward, rating, ratings, unseen=unseen_thinking(reader, trajectory))


def all_thinking(example: Example) -> frozenset[tuple[int, int]]:
    """`Example.unseen` of a model that is never shown its earlier thinking."""
    steps = [step for step in example.trajectory.steps if not step.ephemeral]
    thinking = [index for index, step in enumerate(steps) if step.message.reasoning is not None]
    answers = [index for index, step in enumerate(steps) if step.kind is StepKind.MODEL]
    return frozenset((answer, earlier) for answer in answers for earlier in thinking if earlier < answer)


def unseen_thinking(reader: Reader, trajectory: Trajectory) -> frozenset[tuple[int, int]]:
    """`Example.unseen`, by the recorded inputs of the calls; of imported calls nothing is known."""
    pairs: set[tuple[int, int]] = set()
    answers: list[tuple[int, Step]] = []
    position = 0
    for step in trajectory.steps:
        if step.call is not None and any(answer.message.reasoning is not None for _, answer in answers):
            pairs |= {(position, earlier) for earlier in _unseen_by(reader, trajectory, step, answers)}
        if step.message.role is Role.ASSISTANT:
            answers.append((-1 if step.ephemeral else position, step))
        position += not step.ephemeral
    return frozenset(pairs)


def _unseen_by(
    reader: Reader, trajectory: Trajectory, step: Step, answers: Sequence[tuple[int, Step]]
) -> Iterator[int]:
    """The positions of the answers whose thinking the call of `step` was not shown."""
    try:
        messages, _ = reader.model_input(trajectory.header.id, step)
    except UsageError:
        return
    assistant_messages = [message for message in messages if message.role is Role.ASSISTANT]
    if len(assistant_messages) != len(answers):
        return
    for (position, answer), message in zip(answers, assistant_messages, strict=True):
        if position >= 0 and answer.message.reasoning is not None and message.reasoning is None:
            yield position


def build(
    header: Header,
    messages: tuple[Message, ...],
    *,
    tools: tuple[JSONObject, ...] = (),
    outcome: Outcome | None = None,
    reward: float | None = None,
    rating: float | None = None,
    calls: dict[int, ModelCall] | None = None,
) -> Example:
    """An example from messages alone, for readers of foreign formats.

    Assistant messages become model calls with nothing but the model's name, unless `calls` has the call at
    the message's index. Tool results are put in the order of their calls.
    """
    messages = pair_results(messages)
    by_index = calls or {}
    steps = tuple(
        _step(index, message, header, by_index.get(index)) for index, message in enumerate(messages)
    )
    return Example(Trajectory(header, steps, outcome or ending(messages)), tools, reward, rating)


def ending(messages: tuple[Message, ...]) -> Outcome:
    """The outcome of a conversation, judged by its messages."""
    if messages and messages[-1].role is Role.ASSISTANT and not messages[-1].tool_calls:
        return Outcome(StopReason.COMPLETED)
    return Outcome(StopReason.CUT, Boundary.HOST, detail="imported; it ends without an answer")


def _step(index: int, message: Message, header: Header, call: ModelCall | None) -> Step:
    at_ms = header.created_at_ms
    if message.role is Role.ASSISTANT:
        model_call = call or ModelCall(header.model, IMPORTED, Sampling(), "unknown", Usage(), 0.0)
        return Step(index, StepKind.MODEL, message, at_ms, call=model_call)
    if message.role is Role.TOOL:
        result = ToolResult(
            message.tool_call_id or "",
            message.name or "unknown",
            True,
            0.0,
            result_chars=len(message.content),
        )
        return Step(index, StepKind.TOOL, message, at_ms, result=result)
    return Step(index, StepKind.INPUT, message, at_ms)
