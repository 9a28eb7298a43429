"""What folding a conversation comes to: the messages that are left, the map of folds, states still wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from hermes.core import Message


class Fold(NamedTuple):
    """One entry of the map of what was folded."""

    message: int
    """Index in the original conversation."""
    kind: str
    """tool_output, reasoning, exchange (left out; its run's first result tells of it) or instruction."""
    original_tokens: int
    kept_tokens: int
    protected: bool = False
    """Whether it is in a protected turn; only tool outputs of those are ever folded."""


class Span(NamedTuple):
    """A state that a model is to write."""

    key: str
    """Equal for equal requests."""
    content: str
    facts: tuple[str, ...]
    """What later turns use and the state must have."""
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Folded:
    messages: tuple[Message | None, ...]
    """The original's messages at their places: the same object if unchanged, None if left out."""
    original_tokens: int
    tokens: int
    fits: bool
    folds: tuple[Fold, ...] = ()
    wanted: tuple[Span, ...] = ()
    """States still to be written; if there are any, this result is only a plan."""
    facts: int = 0
    """Facts of tool outputs that later turns use."""
    facts_kept: int = 0
    """Those that the results still state."""
