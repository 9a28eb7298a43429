"""How a trajectory ended: exactly one stop reason, and for a failure the boundary it came from.

The rule this type exists for: an infrastructure failure is never 'completed' and never a reward
of 0. Code that scores or counts trajectories checks `Outcome.infrastructure` first.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hermes.core.json import JSONObject


class StopReason(StrEnum):
    COMPLETED = "completed"
    """The model ended its turn without asking for another tool."""
    MAX_TURNS = "max_turns"
    MAX_TOKENS = "max_tokens"
    MAX_COST = "max_cost"
    MAX_CALLS = "max_calls"
    TIMEOUT = "timeout"
    """Wall clock of the whole trajectory."""
    TRUNCATED = "truncated"
    """The last answer was cut by the server's or our completion limit."""
    CONTEXT_FULL = "context_full"
    EMPTY = "empty"
    """The last answer has neither text nor a tool call."""
    FILTERED = "filtered"
    """The provider withheld the answer (content filter, refusal by policy)."""
    ERROR = "error"
    CANCELLED = "cancelled"
    """A person stopped it."""
    CUT = "cut"
    """The recording process died; appended later by the next writer of the store."""


class Boundary(StrEnum):
    PROVIDER = "provider"
    TOOL = "tool"
    SANDBOX = "sandbox"
    TASK = "task"
    MODEL = "model"
    """The policy itself; the trajectory is scored."""
    GRADER = "grader"
    LIMIT = "limit"
    USER = "user"
    HOST = "host"
    """This machine: process killed, disk full, a bug of ours."""


_INFRASTRUCTURE = {Boundary.PROVIDER, Boundary.TOOL, Boundary.SANDBOX, Boundary.GRADER, Boundary.HOST}


@dataclass(frozen=True, slots=True)
class Outcome:
    """The end of one trajectory."""

    stop_reason: StopReason
    boundary: Boundary | None = None
    """None exactly when stop_reason is COMPLETED."""
    error_type: str | None = None
    detail: str | None = None

    def __post_init__(self) -> None:
        if (self.stop_reason is StopReason.COMPLETED) != (self.boundary is None):
            raise ValueError("an outcome has a boundary exactly when it is not 'completed'")

    @property
    def infrastructure(self) -> bool:
        """True if the end says nothing about the policy, so the trajectory must not be scored."""
        return self.boundary in _INFRASTRUCTURE

    def to_json(self) -> JSONObject:
        return {
            "stop_reason": self.stop_reason.value,
            "boundary": self.boundary.value if self.boundary else None,
            "error_type": self.error_type,
            "detail": self.detail,
        }

    @classmethod
    def from_json(cls, data: JSONObject) -> Outcome:
        boundary = data.get("boundary")
        return cls(
            StopReason(data["stop_reason"]),
            Boundary(boundary) if boundary else None,
            data.get("error_type"),
            data.get("detail"),
        )


COMPLETED = Outcome(StopReason.COMPLETED)
