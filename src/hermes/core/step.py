"""Steps: the events a trajectory is made of, each durable before the next one starts."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hermes.core.json import JSONObject
from hermes.core.message import Message
from hermes.core.model_call import ModelCall


class StepKind(StrEnum):
    INPUT = "input"
    """A message from outside: system prompt, user turn, prefilled example."""
    MODEL = "model"
    """One model call and the assistant message it produced."""
    TOOL = "tool"
    """One tool result."""


class ToolErrorKind(StrEnum):
    UNKNOWN_TOOL = "unknown_tool"
    BAD_ARGUMENTS = "bad_arguments"
    REFUSED = "refused"
    """The approval policy or a guard refused the call."""
    TIMEOUT = "timeout"
    FAILED = "failed"
    """The tool ran and reports failure (a non-zero exit code included)."""
    CANCELLED = "cancelled"
    """A person stopped the turn while the tool ran, or before it started."""
    CRASHED = "crashed"
    """The tool raised something it should not have: a bug of the tool."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The outcome of one tool call. The text that the model received is the step's message."""

    call_id: str
    name: str
    ok: bool
    duration_ms: float
    error_kind: ToolErrorKind | None = None
    """Set exactly when not ok."""
    exit_code: int | None = None
    result_chars: int = 0
    """Length of the full result, before any budget was applied."""
    saved_path: str | None = None
    """Path of the full result in the sandbox, if it was over budget."""

    def to_json(self) -> JSONObject:
        return {name: getattr(self, name) for name in self.__slots__}

    @classmethod
    def from_json(cls, data: JSONObject) -> ToolResult:
        kind = data.get("error_kind")
        return cls(**{**data, "error_kind": ToolErrorKind(kind) if kind else None})


@dataclass(frozen=True, slots=True)
class Step:
    """One event. `call` is set on MODEL steps, `result` on TOOL steps."""

    index: int
    """Position in the trajectory; parallel tool results keep the order of their calls."""
    kind: StepKind
    message: Message
    started_at_ms: int
    """Unix time."""
    call: ModelCall | None = None
    result: ToolResult | None = None
    ephemeral: bool = False
    """On INPUT steps: shown to the model but not part of the dataset (prefill, extra system text)."""
