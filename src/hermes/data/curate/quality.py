"""Rules about how a trajectory went: its length, and whether its tools worked."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from hermes.core import JSONObject, StepKind
from hermes.data.example import Example


@dataclass(frozen=True)
class Length:
    """Bounds on model calls and on characters; None means no bound."""

    min_turns: int | None = None
    max_turns: int | None = None
    max_chars: int | None = None
    """Of everything in the conversation, system prompt and tool results included."""

    name = "length"

    def settings(self) -> JSONObject:
        return {key: value for key, value in asdict(self).items() if value is not None}

    def remove(self, example: Example) -> str | None:
        turns = example.trajectory.turns
        if self.min_turns is not None and turns < self.min_turns:
            return f"{turns} turns, fewer than {self.min_turns}"
        if self.max_turns is not None and turns > self.max_turns:
            return f"{turns} turns, more than {self.max_turns}"
        if self.max_chars is not None:
            chars = sum(_chars(step.message.to_json()) for step in example.trajectory.steps)
            if chars > self.max_chars:
                return f"{chars} characters, more than {self.max_chars}"
        return None


@dataclass(frozen=True)
class ToolSuccess:
    """At least this share of tool calls must have worked; one without calls stays."""

    share: float

    name = "tool-success"

    def settings(self) -> JSONObject:
        return asdict(self)

    def remove(self, example: Example) -> str | None:
        results = [
            step.result for step in example.trajectory.steps if step.kind is StepKind.TOOL and step.result
        ]
        worked = sum(result.ok for result in results)
        if results and worked / len(results) < self.share:
            return f"{worked} of {len(results)} tool calls worked"
        return None


def _chars(value: object) -> int:
    if isinstance(value, str):
        return len(value)
    if isinstance(value, dict):
        return sum(map(_chars, value.values()))
    return sum(map(_chars, value)) if isinstance(value, list) else 0
