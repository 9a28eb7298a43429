"""Folding: its settings, its result, and the order in which messages are folded. Pure: indices in, indices
out.

Protected are system messages, everything up to the first user message, and the last turns. The rest is
folded in this order: tool outputs, old and large ones first; thinking, oldest first. If that is not enough,
the tool outputs of protected turns are folded too, unless `strict_protect` is set; nothing else in those
turns ever changes. Decisions come last: runs of early exchanges, whose first one stays and holds the state
of all of them, and then whole early instructions with their answers.

Every compressed conversation is checked before it is written (`violations`). Folding is built so that no
check can fail; a row for which one does is kept aside, because a broken training row costs more than a
missing one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from hermes.core import Message, Role
from hermes.data.compress.folding.state import is_state
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
    """The facts that later turns use and the state must contain."""
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


def violations(conversation: RowConversation, folded: Folded, settings: FoldSettings) -> Iterator[str]:
    """One line for each promise that is broken."""
    old, new = conversation.messages, folded.messages
    if folded.tokens > settings.target_max_tokens:
        yield f"{folded.tokens} tokens are over the target"
    for i in sorted(protected(conversation, settings.protect_last_turns)):
        output_folded = old[i].role is Role.TOOL and new[i] is not None and not settings.strict_protect
        if new[i] is not old[i] and not output_folded:
            yield f"message {i} is protected and was changed"
    for exchange in conversation.exchanges:
        dropped = [new[i] is None for i in (exchange.call, *exchange.results)]
        if any(dropped) and not all(dropped):
            yield f"the call of message {exchange.call} and its results were parted"
    for i, (before, after) in enumerate(zip(old, new, strict=True)):
        if after is not None and after is not before:
            yield from _message_violations(i, before, after)
    yield from _instruction_violations(old, new)
    strange = _role_pairs([message for message in new if message is not None]) - _role_pairs(old)
    if strange:
        yield f"roles follow one another as they never did before: {sorted(strange)}"


def _message_violations(i: int, before: Message, after: Message) -> Iterator[str]:
    if before.role is Role.TOOL:
        if (after.role, after.tool_call_id, after.name) != (before.role, before.tool_call_id, before.name):
            yield f"result {i} no longer answers its call"
        if not is_state(after.content):
            yield f"result {i} was changed into something that is no folded state"
    elif before.role is not Role.ASSISTANT:
        yield f"message {i} of the {before.role.value} was changed"
    elif (after.content, after.tool_calls) != (before.content, before.tool_calls):
        yield f"the decision of message {i} was changed"


def _instruction_violations(old: Sequence[Message], new: Sequence[Message | None]) -> Iterator[str]:
    """A user message is left out only together with everything up to the next one."""
    left_out = False
    for i, (before, after) in enumerate(zip(old, new, strict=True)):
        if before.role is Role.USER:
            left_out = after is None
        elif left_out and after is not None:
            yield f"message {i} lost the instruction before it"


def _role_pairs(messages: Sequence[Message]) -> set[tuple[str, str]]:
    return {(a.role.value, b.role.value) for a, b in pairwise(messages)}
