"""What formats write and read: a trajectory, the tools its model was offered, its reward and its ratings."""

from __future__ import annotations

from dataclasses import dataclass

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
from hermes.core.message import pair_results
from hermes.store import Reader, Record

IMPORTED = "imported"
"""The endpoint of an imported model call."""


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

    @property
    def id(self) -> str:
        return self.trajectory.header.id

    @property
    def messages(self) -> tuple[Message, ...]:
        return self.trajectory.messages

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
    return Example(trajectory, reader.offered_tools(trajectory_id), reward, rating, ratings)


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
            message.tool_call_id or "", message.name or "", True, 0.0, result_chars=len(message.content)
        )
        return Step(index, StepKind.TOOL, message, at_ms, result=result)
    return Step(index, StepKind.INPUT, message, at_ms)
