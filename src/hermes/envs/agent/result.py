"""The result of one rollout, as reward functions read it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from hermes.core import JSONObject, Message, Outcome, Role, StepKind, StopReason, ToolCall, Trajectory, Usage
from hermes.core.sequence import TrainSequence
from hermes.core.step import Step
from hermes.envs.agent.sequences import Exactness, build_sequences

_ARGUMENT_CHARS = 200


@dataclass(frozen=True, slots=True)
class ToolError:
    """A tool call that failed."""

    turn: int
    """The model call that made the tool call, counted from 1."""
    tool_name: str
    arguments: str
    """At most 200 characters of them."""
    error: str
    """The kind of failure: one of core.step.ToolErrorKind's values."""
    tool_result: str
    """The text that the model read."""


@dataclass(frozen=True)
class AgentResult:
    """A finished rollout. It may be scored unless `outcome.infrastructure` is set."""

    trajectory: Trajectory
    """The record itself, as it is in the store."""
    messages: list[JSONObject]
    """The conversation in OpenAI's form; argument text is what the model wrote, parsable or not."""
    turns_used: int
    """Model calls."""
    finished_naturally: bool
    """True if the model ended its turn by itself."""
    reasoning_per_turn: list[str | None]
    tool_errors: list[ToolError]
    outcome: Outcome
    usage: Usage
    exactness: Exactness

    @property
    def sequences(self) -> tuple[TrainSequence, ...]:
        """The sequences that can be trained on; empty if the rollout is not token-exact."""
        return self.exactness.sequences

    @property
    def final_response(self) -> str:
        """The last text of the assistant; empty if there is none."""
        return self.trajectory.answer

    def tool_calls(self) -> Iterator[tuple[str, Any]]:
        """(name, arguments) of every call, in order; arguments that are not valid JSON are text."""
        for message in self.trajectory.messages:
            for call in message.tool_calls:
                yield call.name, _arguments(call)


def read_result(trajectory: Trajectory) -> AgentResult:
    """The result of a rollout that has ended."""
    assert trajectory.outcome is not None, "the rollout has not ended"
    model_steps = [step for step in trajectory.steps if step.kind is StepKind.MODEL]
    return AgentResult(
        trajectory=trajectory,
        messages=[to_openai(message) for message in trajectory.messages],
        turns_used=len(model_steps),
        finished_naturally=trajectory.outcome.stop_reason in (StopReason.COMPLETED, StopReason.EMPTY),
        reasoning_per_turn=[step.message.reasoning for step in model_steps],
        tool_errors=list(_tool_errors(trajectory.steps)),
        outcome=trajectory.outcome,
        usage=trajectory.usage,
        exactness=build_sequences(step.call for step in model_steps if step.call),
    )


def to_openai(message: Message) -> JSONObject:
    """A message in OpenAI's form."""
    data: JSONObject = {"role": message.role.value, "content": message.content}
    if message.reasoning is not None:
        data["reasoning_content"] = message.reasoning
    if message.tool_calls:
        data["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    if message.role is Role.TOOL:
        data |= {"tool_call_id": message.tool_call_id, "name": message.name}
    return data


def _tool_errors(steps: Sequence[Step]) -> Iterator[ToolError]:
    turn = 0
    calls: dict[str, ToolCall] = {}
    for step in steps:
        if step.kind is StepKind.MODEL:
            turn += 1
            calls = {call.id: call for call in step.message.tool_calls}
        elif step.result is not None and not step.result.ok:
            call = calls.get(step.result.call_id)
            arguments = call.arguments if call else ""
            kind = step.result.error_kind or ""
            yield ToolError(
                turn, step.result.name, arguments[:_ARGUMENT_CHARS], str(kind), step.message.content
            )


def _arguments(call: ToolCall) -> Any:
    try:
        return call.parsed()
    except (ValueError, RecursionError):
        return call.arguments
