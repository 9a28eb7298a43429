"""Folding: its settings, its result, and the order in which messages are folded. Pure: indices in, indices
out.

Protected are system messages, everything up to the first user message, and the last turns. The rest is
folded in this order: tool outputs, old and large ones first; thinking, oldest first. If that is not enough,
the tool outputs of protected turns are folded too, unless `strict_protect` is set; nothing else in those
turns ever changes. Decisions come last: runs of early exchanges, whose first one stays and holds the state
of all of them, and then whole early instructions with their answers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple

from hermes.core import Message, Role
from hermes.data.compress.forms.conversation import RowConversation, ToolExchange


class Strategy(StrEnum):
    FOLD = "fold"
    """States are made by rules; no model is called."""
    SUMMARISE = "summarise"
    """States are written by a model."""
    AUTO = "auto"
    """A model is called only for rows that lose decisions."""


@dataclass(frozen=True, slots=True)
class FoldSettings:
    target_max_tokens: int
    protect_last_turns: int = 4
    summary_target_tokens: int = 750
    """Longest state of one output or of one run of exchanges."""
    strategy: Strategy = Strategy.FOLD
    strict_protect: bool = False
    """Whether the tool outputs of protected turns stay too, even if the row does not fit with them."""


class Fold(NamedTuple):
    """One entry of the map of what was folded."""

    message: int
    """Index in the original conversation."""
    kind: str
    """tool_output, reasoning, exchange (left out; the first result of its run holds its state) or
    instruction."""
    original_tokens: int
    kept_tokens: int
    protected: bool = False
    """Whether it is in a protected turn; only tool outputs of those are ever folded."""


class SummaryRequest(NamedTuple):
    """A state that a model is to write."""

    key: str
    """Equal for equal requests."""
    content: str
    facts: tuple[str, ...]
    """What later turns use and the state must contain."""
    max_tokens: int


@dataclass(frozen=True, slots=True)
class Folded:
    """The result of folding."""

    messages: tuple[Message | None, ...]
    """The original's messages at their indices: the same object if unchanged, None if left out."""
    original_tokens: int
    tokens: int
    fits: bool
    folds: tuple[Fold, ...] = ()
    pending: tuple[SummaryRequest, ...] = ()
    """States that a model still has to write; if there are any, this result is only a plan."""
    facts: int = 0
    """Facts of tool outputs that later turns use."""
    facts_kept: int = 0
    """Those that the results still state."""


def protected(conversation: RowConversation, last_turns: int) -> frozenset[int]:
    """Indices of the protected messages; see `FoldSettings.strict_protect` for the tool outputs among
    them."""
    messages = conversation.messages
    first_user = next((i for i, message in enumerate(messages) if message.role is Role.USER), -1)
    head = [i for i, message in enumerate(messages) if i <= first_user or message.role is Role.SYSTEM]
    tail = [i for group in conversation.turn_groups[-last_turns:] for i in group] if last_turns else []
    return frozenset((*head, *tail))


def output_order(
    messages: Sequence[Message], keep: frozenset[int], tokens: Sequence[float], *, protected: bool
) -> list[int]:
    """Tool messages, protected or not, in the order in which they fold: by size times how much follows."""
    tools = (i for i, message in enumerate(messages) if message.role is Role.TOOL)
    outputs = [i for i in tools if (i in keep) is protected]
    return sorted(outputs, key=lambda i: (-tokens[i] * (len(messages) - i), i))


def thinking_order(messages: Sequence[Message], keep: frozenset[int]) -> list[int]:
    return [i for i, message in enumerate(messages) if message.reasoning and i not in keep]


def exchange_runs(conversation: RowConversation, keep: frozenset[int]) -> list[list[ToolExchange]]:
    """Runs of at least two exchanges that follow one another directly, all answered and none protected."""
    runs: list[list[ToolExchange]] = [[]]
    for exchange in conversation.exchanges:
        free = exchange.answered and keep.isdisjoint((exchange.call, *exchange.results))
        run = runs[-1]
        if free and run and run[-1].results[-1] + 1 == exchange.call:
            run.append(exchange)
        else:
            runs.append([exchange] if free else [])
    return [run for run in runs if len(run) > 1]


def later_instructions(messages: Sequence[Message], keep: frozenset[int]) -> list[range]:
    """User messages after the first, each with all that follows up to the next one, if none of it is
    protected."""
    starts = [i for i, message in enumerate(messages) if message.role is Role.USER]
    ends = [*starts[1:], len(messages)]
    spans = [range(start, end) for start, end in zip(starts, ends, strict=True)]
    return [span for span in spans[1:] if keep.isdisjoint(span)]
