"""A fact that the agent remembers across sessions, and where it comes from."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum

from hermes.core.json import JSONObject


class FactAuthor(StrEnum):
    AGENT = "agent"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Fact:
    id: str
    text: str
    """One line."""
    author: FactAuthor
    created_at_ms: int
    trajectory_id: str | None = None
    """The trajectory that it comes from; None if the user stated it on the command line."""
    step_index: int | None = None
    """The step of that trajectory: the model call that made the tool call, or what the user named."""
    session_id: str | None = None
    """The session of that trajectory, as its header has it."""

    def to_json(self) -> JSONObject:
        return asdict(self)
