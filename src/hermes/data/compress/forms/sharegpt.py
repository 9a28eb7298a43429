"""ShareGPT turns as messages and back, for our own rows and for hermes-agent's.

Calls in a `gpt` turn carry no ids: the results that follow answer them in order. A `tool` turn may hold
several `<tool_response>` blocks; each is one message. Text outside of the blocks is a result of its own.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from dataclasses import field as dataclass_field
from typing import NamedTuple

from hermes.core import JSONObject, Message, Role, ToolCall
from hermes.data.compress.forms.conversation import Edited, RowConversation, RowError, find_exchanges
from hermes.data.formats.sharegpt import ROLES
from hermes.models.parsers import get_parser

_THINKING = re.compile(r"\s*<think>(.*?)</think>\n?", re.DOTALL)
_OPEN, _CLOSE = "<tool_response>", "</tool_response>"
_DECODER = json.JSONDecoder()


class _Block(NamedTuple):
    """One result inside a turn's text."""

    start: int
    end: int
    body: JSONObject | str
    """The JSON object of the result, or its bare text."""
    tagged: bool = True
    """False if the whole turn is one result without a tag around it."""


@dataclass(frozen=True)
class ShareGPTForm:
    original: tuple[JSONObject, ...]
    messages: tuple[Message, ...]
    turn_of: tuple[int, ...]
    """For each message, the turn it came from."""
    blocks: dict[int, _Block]
    """For each tool message, its place in its turn."""
    field: str = "conversations"
    tools: Sequence[JSONObject] = ()
    written: dict[tuple[int, str], str] = dataclass_field(default_factory=dict)
    """Blocks with changed contents: a cache, since each count of the conversation renders them."""

    def turns(self, messages: Edited) -> list[JSONObject]:
        remaining = {self.turn_of[i] for i, message in enumerate(messages) if message is not None}
        changed: dict[int, list[int]] = {}
        for i, message in enumerate(messages):
            if message is not None and message is not self.messages[i]:
                changed.setdefault(self.turn_of[i], []).append(i)
        return [
            turn if number not in changed else {**turn, "value": self._value(turn, changed[number], messages)}
            for number, turn in enumerate(self.original)
            if number in remaining
        ]

    def chat(self, turns: Sequence[JSONObject], result_role: Role) -> list[JSONObject]:
        names = {name: role.value for name, role in ROLES.items()} | {"tool": result_role.value}
        return [{"role": names[turn["from"]], "content": turn["value"]} for turn in turns]

    def _value(self, turn: JSONObject, changed: Sequence[int], messages: Edited) -> str:
        value: str = turn["value"]
        for i in reversed(changed):
            message = messages[i]
            assert message is not None
            if message.role is Role.ASSISTANT:  # only its thinking can have been dropped
                value = _THINKING.sub("", value, count=1)
            else:
                block = self.blocks[i]
                key = i, message.content
                text = self.written.get(key) or self.written.setdefault(key, _block_text(block, key[1]))
                value = value[: block.start] + text + value[block.end :]
        return value


def read_sharegpt(turns: object) -> RowConversation:
    if not isinstance(turns, list) or not turns:
        raise RowError("'conversations' is not a list of turns")
    messages: list[Message] = []
    turn_of: list[int] = []
    blocks: dict[int, _Block] = {}
    for number, turn in enumerate(turns):
        role, value = _role_and_value(number, turn)
        if role is not Role.TOOL:
            messages.append(_message(role, value))
        for block in _find_blocks(value) if role is Role.TOOL else ():
            blocks[len(messages)] = block
            messages.append(_result(block, len(messages)))
        turn_of += [number] * (len(messages) - len(turn_of))
    matched = tuple(_with_ids(messages))
    form = ShareGPTForm(tuple(turns), matched, tuple(turn_of), blocks)
    return RowConversation(matched, find_exchanges(matched), form)


def _role_and_value(number: int, turn: object) -> tuple[Role, str]:
    name = turn.get("from") if isinstance(turn, dict) else None
    value = turn.get("value") if isinstance(turn, dict) else None
    if not isinstance(name, str) or name not in ROLES:
        raise RowError(f"turn {number}: unknown role {name!r}")
    if not isinstance(value, str):
        raise RowError(f"turn {number}: its value is not text")
    return ROLES[name], value


def _message(role: Role, value: str) -> Message:
    if role is not Role.ASSISTANT:
        return Message(role, value)
    thinking = _THINKING.match(value)
    text = _without_open_thinking(value[thinking.end() :] if thinking else value)
    parsed = get_parser("hermes").parse(text) if "<tool_call>" in text else None
    return Message.assistant(
        parsed.content if parsed else text,
        reasoning=thinking[1] if thinking else None,
        tool_calls=parsed.tool_calls if parsed else (),
    )


def _without_open_thinking(text: str) -> str:
    """A mark that nothing closes is text: the results that follow in the row answer the calls behind it."""
    closed = text.rfind("</think>") + 1
    return text[:closed] + text[closed:].replace("<think>", "")


def _find_blocks(value: str) -> list[_Block]:
    blocks: list[_Block] = []
    at = value.find(_OPEN)
    while at >= 0:
        inside = at + len(_OPEN)
        body, end = _block_body(value, inside)
        blocks.append(_Block(at, end, body))
        at = value.find(_OPEN, end)
    return blocks or [_Block(0, len(value), value, tagged=False)]


def _block_body(value: str, inside: int) -> tuple[JSONObject | str, int]:
    """The content of a block and its end. Its JSON is read as JSON, so a tag quoted inside ends nothing."""
    start = inside + len(value[inside:]) - len(value[inside:].lstrip())
    try:
        body, end = _DECODER.raw_decode(value, start)
    except (ValueError, RecursionError):
        body, end = None, start
    close = value.find(_CLOSE, end if isinstance(body, dict) else inside)
    stop = len(value) if close < 0 else close
    if isinstance(body, dict) and "content" in body and not value[end:stop].strip():
        return body, stop + len(_CLOSE) if close >= 0 else stop
    return value[inside:stop], stop + len(_CLOSE) if close >= 0 else stop


def _block_text(block: _Block, content: str) -> str:
    if not block.tagged:
        return content
    if isinstance(block.body, str):
        return f"{_OPEN}\n{content}\n{_CLOSE}"
    # A folded state is a JSON object, and is embedded as such, like any other structured result.
    body = {**block.body, "content": json.loads(content)}
    return f"{_OPEN}\n{json.dumps(body, ensure_ascii=False)}\n{_CLOSE}"


def _result(block: _Block, index: int) -> Message:
    if isinstance(block.body, str):
        return Message(Role.TOOL, block.body.strip("\n"), tool_call_id=f"#{index}")
    content = block.body["content"]
    return Message(
        Role.TOOL,
        content if isinstance(content, str) else json.dumps(content, ensure_ascii=False),
        tool_call_id=f"#{index}",
        name=str(block.body.get("name") or "") or None,
    )


def _with_ids(messages: Sequence[Message]) -> list[Message]:
    """Gives each call the id of the result that answers it: the one at its place in the turns that follow."""
    matched = list(messages)
    for index, message in enumerate(messages):
        if not message.tool_calls:
            continue
        ids = []
        for position in range(index + 1, index + 1 + len(message.tool_calls)):
            if position >= len(messages) or messages[position].role is not Role.TOOL:
                break
            ids.append(messages[position].tool_call_id or "")
        calls = tuple(_with_id(call, ids, n, index) for n, call in enumerate(message.tool_calls))
        matched[index] = replace(message, tool_calls=calls)
    return matched


def _with_id(call: ToolCall, ids: Sequence[str], position: int, index: int) -> ToolCall:
    return replace(call, id=ids[position] if position < len(ids) else f"#{index}.{position}")
