"""A trajectory: who ran it and how (header), what happened (steps), how it ended (outcome).

All three are written once. What is learned later (ratings, rewards, compressed versions) is
appended beside it and points at its id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from hermes.core.json import JSONObject
from hermes.core.message import Message, Role
from hermes.core.outcome import Outcome
from hermes.core.rating import Rating as Rating
from hermes.core.rating import RatingKind as RatingKind
from hermes.core.step import Step, StepKind
from hermes.core.usage import Usage


class Source(StrEnum):
    CHAT = "chat"
    QUERY = "query"
    BATCH = "batch"
    ENV = "env"
    DELEGATE = "delegate"
    IMPORT = "import"
    RECORD = "record"
    """An agent of others, through the gateway."""


class Relation(StrEnum):
    """The relation of a trajectory to its parent."""

    DELEGATE = "delegate"
    RETRY = "retry"
    COMPRESSED = "compressed"
    CONTINUED = "continued"
    SIDE = "side"
    """A call that its client made beside the task: a title, a summary."""


@dataclass(frozen=True, slots=True)
class Header:
    """Known before the first step."""

    id: str
    source: Source
    model: str
    created_at_ms: int
    session_id: str | None = None
    run_id: str | None = None
    task_id: str | None = None
    sample_index: int = 0
    parent_id: str | None = None
    relation: Relation | None = None
    tools: tuple[str, ...] = ()
    """Names of the tools that were offered."""
    config: JSONObject = field(default_factory=dict)
    """Resolved limits, sampling, sandbox, toolsets, distribution and seed."""
    metadata: JSONObject = field(default_factory=dict)
    """Carried through from the task row."""


@dataclass(frozen=True, slots=True)
class Reward:
    trajectory_id: str
    value: float
    source: str
    """Name of the reward function or judge."""
    detail: JSONObject = field(default_factory=dict)
    created_at_ms: int = 0


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A whole recorded run."""

    header: Header
    steps: Sequence[Step]
    outcome: Outcome | None
    """None while it is still running."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation, ephemeral inputs left out."""
        return tuple(step.message for step in self.steps if not step.ephemeral)

    @property
    def usage(self) -> Usage:
        return sum((step.call.usage for step in self.steps if step.call), Usage())

    @property
    def cost_usd(self) -> float | None:
        """None as soon as one call's price is unknown."""
        costs = [step.call.cost_usd for step in self.steps if step.call]
        priced = [cost for cost in costs if cost is not None]
        return sum(priced) if len(priced) == len(costs) else None

    @property
    def turns(self) -> int:
        """Number of model calls."""
        return sum(step.kind is StepKind.MODEL for step in self.steps)

    @property
    def answer(self) -> str:
        """The text of the last assistant message that has any; else empty."""
        for message in reversed(self.messages):
            if message.role is Role.ASSISTANT and message.content:
                return message.content
        return ""


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
