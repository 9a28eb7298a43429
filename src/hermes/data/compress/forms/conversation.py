"""A row's conversation as messages, and back into the row's own form.

Three forms: ShareGPT turns (`conversations`), OpenAI messages (`messages`), and a stored trajectory.
What is not changed comes back exactly as it was, byte for byte: a form renders only the messages that were
changed, and leaves out those that are None. What cannot be read (an unknown role, a result that answers no
call) is a `RowError` that names the turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import NamedTuple, Protocol

from hermes.core import JSON, JSONObject, Message, Role, ToolCall
from hermes.data.formats.sharegpt import Roles, conversations
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


_REASONING = ("reasoning_content", "reasoning", "thinking")
_ROLES = {role.value: role for role in Role} | {"developer": Role.SYSTEM}


@dataclass(frozen=True)
class MessagesForm:
    original: tuple[JSONObject, ...]
    messages: tuple[Message, ...]
    tools: Sequence[JSONObject] = ()
    field: str = "messages"

    @property
    def turn_of(self) -> Sequence[int]:
        return range(len(self.messages))

    def turns(self, messages: Edited) -> list[JSONObject]:
        return [
            raw if new is old else _rewrite(raw, new)
            for raw, old, new in zip(self.original, self.messages, messages, strict=True)
            if new is not None
        ]

    def chat(self, turns: Sequence[JSONObject], result_role: Role) -> list[JSONObject]:
        return [{**turn, "content": turn.get("content") or ""} for turn in turns]


@dataclass(frozen=True)
class RecordForm:
    """A trajectory out of the store, written as ShareGPT; its tools go into the system text."""

    schemas: Sequence[JSONObject]
    turn_of: Sequence[int]
    field: str = "conversations"
    tools: Sequence[JSONObject] = ()

    def turns(self, messages: Edited) -> list[JSONObject]:
        remaining = [message for message in messages if message is not None]
        return conversations(remaining, self.schemas, Roles.HUMAN_GPT)

    def chat(self, turns: Sequence[JSONObject], result_role: Role) -> list[JSONObject]:
        names = {"system": "system", "human": "user", "gpt": "assistant", "tool": result_role.value}
        return [{"role": names[turn["from"]], "content": turn["value"]} for turn in turns]


def read_record(messages: Sequence[Message], schemas: Sequence[JSONObject]) -> RowConversation:
    conversation = tuple(messages)
    # Without a system message, the tools get a turn of their own at the beginning.
    first = int(bool(schemas) and not (conversation and conversation[0].role is Role.SYSTEM))
    turn_of = [turn for turn, group in enumerate(turn_groups(conversation), first) for _ in group]
    return RowConversation(conversation, find_exchanges(conversation), RecordForm(schemas, turn_of))


def read_messages(row: JSONObject) -> RowConversation:
    turns = row.get("messages")
    if not isinstance(turns, list) or not turns:
        raise RowError("'messages' is not a list of messages")
    messages = tuple(_message(number, turn) for number, turn in enumerate(turns))
    tools = row.get("tools")
    form = MessagesForm(tuple(turns), messages, tools if isinstance(tools, list) else ())
    return RowConversation(messages, find_exchanges(messages), form)


def _message(number: int, turn: JSON) -> Message:
    if not isinstance(turn, dict) or turn.get("role") not in _ROLES:
        name = turn.get("role") if isinstance(turn, dict) else None
        raise RowError(f"message {number}: unknown role {name!r}")
    role = _ROLES[turn["role"]]
    message = Message(role, _text(number, turn.get("content")))
    if role is Role.TOOL:
        return replace(message, tool_call_id=turn.get("tool_call_id"), name=turn.get("name"))
    if role is Role.ASSISTANT:
        thinking = next((turn[name] for name in _REASONING if isinstance(turn.get(name), str)), None)
        calls = tuple(_call(number, call) for call in turn.get("tool_calls") or ())
        return replace(message, reasoning=thinking, tool_calls=calls)
    return message


def _text(number: int, content: JSON) -> str:
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, list):
        return "\n".join(part["text"] for part in content if isinstance(part, dict) and "text" in part)
    raise RowError(f"message {number}: its content is not text")


def _call(number: int, call: JSON) -> ToolCall:
    import json

    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        raise RowError(f"message {number}: a tool call without a function")
    arguments = function.get("arguments")
    text = arguments if isinstance(arguments, str) else json.dumps(arguments or {}, ensure_ascii=False)
    return ToolCall(str(call.get("id") or ""), str(function.get("name") or ""), text)


def _rewrite(raw: JSONObject, message: Message) -> JSONObject:
    if message.role is Role.ASSISTANT:  # only its thinking can have been dropped
        return {key: value for key, value in raw.items() if key not in _REASONING}
    return {**raw, "content": message.content}
