"""A row's conversation as messages, and back into the row's own form.

Three forms: ShareGPT turns (`conversations`), OpenAI messages (`messages`), and a stored trajectory.
What is not changed comes back exactly as it was, byte for byte: a form renders only the messages that were
changed, and leaves out those that are None. What cannot be read (an unknown role, a result that answers no
call) is a `RowError` that names the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple, Protocol

from hermes.core import JSONObject, Message, Role
from hermes.errors import HermesError


class RowError(HermesError):
    """A row that cannot be compressed as it is."""


Edited = Sequence[Message | None]
"""The messages of a conversation, at their indices: the same object if unchanged, None if left out."""


class Form(Protocol):
    """How a conversation is written in its row."""

    @property
    def field(self) -> str:
        """The row's field that holds the turns."""
        ...

    @property
    def tools(self) -> Sequence[JSONObject]:
        """Schemas that the template is given; those written into the system text are not among them."""
        ...

    @property
    def turn_of(self) -> Sequence[int]:
        """For each message, the turn of the unchanged conversation that it is in."""
        ...

    def turns(self, messages: Edited) -> list[JSONObject]:
        """The turns for the row."""
        ...

    def chat(self, turns: Sequence[JSONObject], result_role: Role) -> list[JSONObject]:
        """The turns as a chat template takes them."""
        ...


class ToolExchange(NamedTuple):
    """An assistant message that calls tools, and their results."""

    call: int
    """Index of the assistant message."""
    results: tuple[int, ...]
    """Indices of the tool messages, in the order of the conversation."""
    answered: bool
    """Whether every call has its result."""


@dataclass(frozen=True, slots=True)
class RowConversation:
    messages: tuple[Message, ...]
    exchanges: tuple[ToolExchange, ...]
    form: Form

    @property
    def turn_groups(self) -> list[range]:
        """Indices of the messages of each turn; tool results that follow one another are one turn."""
        return turn_groups(self.messages)


def turn_groups(messages: Sequence[Message]) -> list[range]:
    groups: list[range] = []
    for is_tool, group in groupby(range(len(messages)), lambda i: messages[i].role is Role.TOOL):
        indices = list(group)
        groups += [range(indices[0], indices[-1] + 1)] if is_tool else [range(i, i + 1) for i in indices]
    return groups


def find_exchanges(messages: Sequence[Message]) -> tuple[ToolExchange, ...]:
    """Which results answer which assistant message; RowError for a result that answers none."""
    exchanges: list[ToolExchange] = []
    caller: int | None = None
    open_ids: list[str] = []
    results: list[int] = []

    def close() -> None:
        if caller is not None and messages[caller].tool_calls:
            exchanges.append(ToolExchange(caller, tuple(results), not open_ids))

    for index, message in enumerate(messages):
        if message.role is Role.TOOL:
            if message.tool_call_id not in open_ids:
                raise RowError(f"message {index}: a tool result that answers no call")
            open_ids.remove(message.tool_call_id)
            results.append(index)
            continue
        close()
        caller = index if message.role is Role.ASSISTANT else None
        open_ids, results = [call.id for call in message.tool_calls], []
    close()
    return tuple(exchanges)
