"""Llama 3 and 4: the answer *is* the call, `{"name": …, "parameters": {…}}`.

Only an answer that begins with such an object, or with a `<|python_tag|>`, calls anything; the same
JSON further down is prose. Several objects may follow one another, with `;` or white space between.
An object without "parameters" (or "arguments") is an answer in JSON, not a call.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hermes.core import JSONObject, ToolCall
from hermes.models.parsers.base import MalformedCallError, NotACallError, ParsedText, new_call_id
from hermes.models.parsers.hermes import call_object
from hermes.models.parsers.json_scan import call_parts, members_at, skip_space
from hermes.models.parsers.objects import CallSequence, broken_object
from hermes.models.parsers.scan import Grammar, scan

_TAG = r"<\|python_(?:tag|start)\|>"
_ROW = CallSequence(
    separator=re.compile(r"[;\n]\s*(?=\{)"),
    after=re.compile(r"\s*+(?![,}\]])"),
    joined=re.compile(r"\s*+(?:[;{]|\Z)"),
    stop=re.compile(r"</?think>"),
)
_GAP = re.compile(r"[\s;]*(?=\{)")
_KEYS = ("parameters", "arguments")
_BROKEN_CALL = re.compile(r'\{\s*"name"\s*:\s*"(?:[^"\\]|\\.)*"\s*,\s*"(?:parameters|arguments)"\s*:')


@dataclass(frozen=True)
class LlamaParser:
    name: str

    @cached_property
    def _grammar(self) -> Grammar:
        begins = r"(?:\A|(?<=</think>))\s*"
        return Grammar(
            opener=rf"{begins}(?:{_TAG}|(?=\{{))",
            framing=r"<\|python_end\|>",
            read=self._read,
        )

    def _read(self, text: str, at: int, tools: Sequence[JSONObject]) -> tuple[list[ToolCall], int]:
        calls: list[ToolCall] = []
        tagged = text.startswith("|>", max(0, at - 2))
        start = skip_space(text, at)
        if not tagged and not _is_call(text, start):
            raise NotACallError
        while True:
            call, end = self._read_call(text, start)
            calls.append(call)
            gap = _GAP.match(text, end)
            if not gap:
                return calls, end
            start = gap.end()

    def _read_call(self, text: str, at: int) -> tuple[ToolCall, int]:
        try:
            name, arguments, end = call_parts(text, at, *_KEYS)
        except MalformedCallError as error:
            return broken_object(text, at, error, _ROW)
        return ToolCall(new_call_id(), name, arguments), end

    def parse(self, text: str, tools: Sequence[JSONObject] = ()) -> ParsedText:
        return scan(text, self._grammar, tools)

    def render(self, calls: Sequence[ToolCall]) -> str:
        return "; ".join(self._render_call(call) for call in calls)

    def _render_call(self, call: ToolCall) -> str:
        if call.error and call.arguments.startswith("{"):
            return call.arguments
        return call_object(call, "parameters")


def _is_call(text: str, at: int) -> bool:
    """True for an object with a name and parameters, even if it is cut off or malformed inside them."""
    try:
        members, _ = members_at(text, at)
    except MalformedCallError:
        return _BROKEN_CALL.match(text, at) is not None
    return "name" in members and any(key in members for key in _KEYS)
