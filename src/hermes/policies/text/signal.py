"""The signal that texts are improved by: tasks, and the score of an agent that works on one under some texts.

A signal scores; it does not search, decide or remember. What cannot be scored (no model, no sandbox, a grader
that fails) is an error, never a score.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hermes.core import JSON
from hermes.core.texts import Texts


@dataclass(frozen=True, slots=True)
class TextTask:
    key: str
    prompt: str
    reference: str = ""
    """The right answer, where the task states it; no text may contain it."""
    held_out: bool | None = None
    """Whether the signal itself holds the task out for the decision; None: the split says."""


def as_reference(expected: JSON) -> str:
    """The expected answer of a row of tasks, as text."""
    return "" if expected is None else expected if isinstance(expected, str) else str(expected)


@dataclass(frozen=True, slots=True)
class TaskScore:
    """One rollout."""

    score: float
    answer: str
    feedback: str
    """For the model that reflects: what was expected, why the score is what it is."""
    trajectory_id: str
    calls: int
    """Model calls."""
    tokens: int
    cost_usd: float | None
    """None: the price is unknown."""


class TextSignal(Protocol):
    @property
    def name(self) -> str:
        """Where the scores come from, for people; the same for the same tasks and grader."""
        ...

    @property
    def tasks(self) -> Sequence[TextTask]: ...

    async def score(self, texts: Texts, task: TextTask) -> TaskScore: ...

    async def close(self) -> None: ...
