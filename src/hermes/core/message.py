"""Messages and tool calls, exactly as the model wrote and received them.

A tool call keeps the argument text exactly as the model wrote it. Whether that text parses is a
separate question (`ToolCall.parsed`), so a malformed call is data, never an empty dictionary.
"""

from __future__ import annotations

import json
from collections.abc import Container, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from hermes.core.json import JSONObject


class Role(StrEnum):
    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One request by the model to run a tool."""

    id: str
    name: str
    arguments: str
    """The JSON text of the arguments, verbatim."""
    error: str | None = None
    """Why the call as written cannot be run (bad syntax); None if it can."""
    repaired: bool = False
    """True if `arguments` was mended by us; the original is in the model call's raw response."""

    def parsed(self) -> JSONObject:
        """The arguments as a dictionary; the ValueError names the problem."""
        if self.error:
            raise ValueError(self.error)
        value = json.loads(self.arguments) if self.arguments.strip() else {}
        if not isinstance(value, dict):
            raise ValueError(f"arguments must be a JSON object, not {type(value).__name__}")
        return value

    def to_json(self) -> JSONObject:
        data: JSONObject = {"id": self.id, "name": self.name, "arguments": self.arguments}
        if self.error is not None:
            data["error"] = self.error
        if self.repaired:
            data["repaired"] = True
        return data

    @classmethod
    def from_json(cls, data: JSONObject) -> ToolCall:
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Message:
    """One turn of a conversation."""

    role: Role
    content: str = ""
    reasoning: str | None = None
    """The assistant's thinking, where the model gives it; None if it gave none."""
    tool_calls: tuple[ToolCall, ...] = ()
    """Only on assistant messages."""
    tool_call_id: str | None = None
    """Only on tool messages: the call this answers."""
    name: str | None = None
    """Only on tool messages: the tool that answered."""
    images: tuple[str, ...] = ()
    """Image URLs or data URLs that accompany the content."""

    @classmethod
    def system(cls, content: str) -> Message:
        return cls(Role.SYSTEM, content)

    @classmethod
    def user(cls, content: str) -> Message:
        return cls(Role.USER, content)

    @classmethod
    def assistant(
        cls, content: str = "", *, reasoning: str | None = None, tool_calls: tuple[ToolCall, ...] = ()
    ) -> Message:
        return cls(Role.ASSISTANT, content, reasoning, tool_calls)

    @classmethod
    def tool(cls, call: ToolCall, content: str) -> Message:
        return cls(Role.TOOL, content, tool_call_id=call.id, name=call.name)

    def to_json(self) -> JSONObject:
        """The stored form; absent fields are left out so that equal messages hash equal."""
        data: JSONObject = {"role": self.role.value, "content": self.content}
        if self.reasoning is not None:
            data["reasoning"] = self.reasoning
        if self.tool_calls:
            data["tool_calls"] = [call.to_json() for call in self.tool_calls]
        if self.tool_call_id is not None:
            data["tool_call_id"] = self.tool_call_id
        if self.name is not None:
            data["name"] = self.name
        if self.images:
            data["images"] = list(self.images)
        return data

    @classmethod
    def from_json(cls, data: JSONObject) -> Message:
        return cls(
            role=Role(data["role"]),
            content=data.get("content", ""),
            reasoning=data.get("reasoning"),
            tool_calls=tuple(ToolCall.from_json(call) for call in data.get("tool_calls", ())),
            tool_call_id=data.get("tool_call_id"),
            name=data.get("name"),
            images=tuple(data.get("images", ())),
        )


def hide_thinking(messages: Sequence[Message], hidden: Container[int]) -> tuple[Message, ...]:
    """The messages, those at the `hidden` positions without their thinking."""
    return tuple(
        replace(message, reasoning=None) if message.reasoning is not None and index in hidden else message
        for index, message in enumerate(messages)
    )


def pair_results(messages: Sequence[Message]) -> tuple[Message, ...]:
    """The messages with tool results in the order of their calls, and named after the tools that were called.

    A result belongs to the call with its id; of several calls with one id, to the first without a result.
    Results without ids belong to the calls before them by their position, if there are as many. Results that
    belong to no call stay as they are.
    """
    paired = list(messages)
    names: dict[str | None, str] = {}
    for index, message in enumerate(paired):
        if message.role is Role.TOOL and not message.name and message.tool_call_id in names:
            paired[index] = replace(message, name=names[message.tool_call_id])
        if not message.tool_calls:
            continue
        end = index + 1
        while end < len(paired) and paired[end].role is Role.TOOL:
            end += 1
        calls, results = message.tool_calls, paired[index + 1 : end]
        names |= {call.id: call.name for call in calls if call.id}
        ids = [call.id for call in calls]
        if len(results) == len(calls) and not any(result.tool_call_id for result in results):
            paired[index + 1 : end] = [
                replace(result, tool_call_id=call.id or None, name=result.name or call.name)
                for result, call in zip(results, calls, strict=True)
            ]
        elif all(result.tool_call_id in ids for result in results):
            paired[index + 1 : end] = _in_order_of_calls(calls, results)
    return tuple(paired)


def _in_order_of_calls(calls: Sequence[ToolCall], results: Sequence[Message]) -> list[Message]:
    """Results that all have the id of a call."""
    ids = [call.id for call in calls]
    free: list[str | None] = [*ids]
    placed: list[tuple[int, Message]] = []
    for result in results:
        position = (free if result.tool_call_id in free else ids).index(result.tool_call_id or "")
        free[position] = None
        placed.append((position, result if result.name else replace(result, name=calls[position].name)))
    return [result for _, result in sorted(placed, key=lambda item: item[0])]
