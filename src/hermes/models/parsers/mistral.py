"""Mistral's two formats, both after `[TOOL_CALLS]`.

- up to tokenizer v7: one array, `[TOOL_CALLS] [{"name": …, "arguments": {…}, "id": "…"}, …]`;
- from v11: one mark per call, `[TOOL_CALLS]name{…}`, later with `[CALL_ID]id` and `[ARGS]` between.

Every Mistral parser reads both; `array` selects the one that `render` writes. Ids are nine letters
and digits, as Mistral's templates require. Thinking may be `[THINK]…[/THINK]`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from hermes.core import JSONObject, ToolCall
from hermes.models.parsers.base import MalformedCallError, ParsedText
from hermes.models.parsers.hermes import call_object
from hermes.models.parsers.json_scan import call_parts, decode_object_at, members_at, skip_space
from hermes.models.parsers.objects import NAME, CallSequence, argument_text, broken_object, checked_name
from hermes.models.parsers.scan import Grammar, scan

_MARK = "[TOOL_CALLS]"
_BEHIND = re.compile(r"\s*+(?:,\s*\{|\]\s*+(?![,}\]])|\Z)")
_ROW = CallSequence(
    separator=re.compile(r",\s*(?=\{)"),
    after=_BEHIND,
    joined=_BEHIND,
    stop=re.compile(r"\[TOOL_CALLS\]|</?think>|\[/?THINK\]"),
)
_HEAD = re.compile(rf"\s*(?P<name>{NAME})\s*(?:\[CALL_ID\](?P<id>[A-Za-z0-9]+)\s*)?(?:\[ARGS\])?\s*(?=\{{)")
_ID = re.compile(r"[A-Za-z0-9]{9}")
_ALPHABET = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"


@dataclass(frozen=True)
class MistralParser:
    name: str
    array: bool

    @cached_property
    def _grammar(self) -> Grammar:
        return Grammar(
            opener=re.escape(_MARK),
            read=self._read,
            thinking=(("<think>", "</think>"), ("[THINK]", "[/THINK]")),
        )

    def _read(self, text: str, at: int, tools: Sequence[JSONObject]) -> tuple[list[ToolCall], int]:
        start = skip_space(text, at)
        if text.startswith("[", start) and not text.startswith(_MARK, start):
            return self._read_array(text, start + 1)
        head = _HEAD.match(text, at)
        if head is None:
            raise MalformedCallError(f"after {_MARK} comes neither an array nor a name and an object")
        arguments = decode_object_at(text, head.end(), head["name"])
        call = ToolCall(head["id"] or "", head["name"], text[arguments.start : arguments.end])
        return [call], arguments.end

    def _read_array(self, text: str, at: int) -> tuple[list[ToolCall], int]:
        calls: list[ToolCall] = []
        while True:
            at = skip_space(text, at)
            if at == len(text) or _ROW.stop.match(text, at):
                return calls, at
            if text[at] == "]":
                return calls, at + 1
            call, at = self._read_element(text, at)
            calls.append(call)
            at = skip_space(text, at)
            at += text.startswith(",", at)

    def _read_element(self, text: str, at: int) -> tuple[ToolCall, int]:
        try:
            name, arguments, end = call_parts(text, at, "arguments")
        except MalformedCallError as error:
            return broken_object(text, at, error, _ROW)
        call_id = members_at(text, at)[0].get("id")
        has_id = call_id is not None and isinstance(call_id.value, str)
        return ToolCall(call_id.value if call_id and has_id else "", name, arguments), end

    def parse(self, text: str, tools: Sequence[JSONObject] = ()) -> ParsedText:
        parsed = scan(text, self._grammar, tools)
        return replace(parsed, tool_calls=tuple(map(_with_id, parsed.tool_calls)))

    def render(self, calls: Sequence[ToolCall]) -> str:
        if self.array and not any(_is_marked(call) for call in calls):
            return f"{_MARK} [{', '.join(map(_element, calls))}]" if calls else ""
        return "".join(call.arguments if _is_marked(call) else self._render_call(call) for call in calls)

    def _render_call(self, call: ToolCall) -> str:
        if self.array:
            return f"{_MARK} [{_element(call)}]"
        return f"{_MARK}{checked_name(call)}{argument_text(call)}"


def _is_marked(call: ToolCall) -> bool:
    """A malformed call whose text already has its mark."""
    return call.error is not None and call.arguments.startswith(_MARK)


def _element(call: ToolCall) -> str:
    if call.error and call.arguments.startswith("{"):
        return call.arguments
    text = call_object(call, "arguments")
    return f'{text[:-1]}, "id": "{call.id}"}}' if _ID.fullmatch(call.id) else text


def _with_id(call: ToolCall) -> ToolCall:
    if _ID.fullmatch(call.id):
        return call
    return replace(call, id="".join(_ALPHABET[byte % len(_ALPHABET)] for byte in os.urandom(9)))
