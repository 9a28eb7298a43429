"""`<tool_call>{"name": …, "arguments": {…}}</tool_call>`, and the same with another tag.

Used by Hermes, Qwen 2.5 and 3 (`hermes`, `qwen`) and LongCat (`longcat`). The closing tag may be
missing where another call or the end of the answer follows the complete JSON.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from hermes.core import JSONObject, ToolCall
from hermes.models.parsers.base import MalformedCallError, ParsedText, new_call_id
from hermes.models.parsers.json_scan import call_parts, is_object, skip_space
from hermes.models.parsers.objects import argument_text
from hermes.models.parsers.scan import Grammar, scan


@dataclass(frozen=True)
class TaggedJSONParser:
    name: str
    tag: str

    @cached_property
    def _grammar(self) -> Grammar:
        return Grammar(opener=re.escape(f"<{self.tag}>"), closer=re.escape(f"</{self.tag}>"), read=self._read)

    def _read(self, text: str, at: int, tools: Sequence[JSONObject]) -> tuple[list[ToolCall], int]:
        start = skip_space(text, at)
        name, arguments, json_end = call_parts(text, start, "arguments")
        end = skip_space(text, json_end)
        if text.startswith(f"</{self.tag}>", end):
            end += len(self.tag) + 3
        elif end < len(text) and not text.startswith(f"<{self.tag}>", end):
            raise MalformedCallError("text after the call's JSON", name=name, ends_at=json_end)
        return [ToolCall(new_call_id(), name, arguments)], end

    def parse(self, text: str, tools: Sequence[JSONObject] = ()) -> ParsedText:
        return scan(text, self._grammar, tools)

    def render(self, calls: Sequence[ToolCall]) -> str:
        return "\n".join(map(self._render_call, calls))

    def _render_call(self, call: ToolCall) -> str:
        if call.error and call.arguments.startswith(f"<{self.tag}>"):
            return call.arguments
        return f"<{self.tag}>\n{call_object(call, 'arguments')}\n</{self.tag}>"


def call_object(call: ToolCall, key: str) -> str:
    """The call as one JSON object, its arguments verbatim; as a JSON string if they are not an object."""
    arguments = argument_text(call)
    if not is_object(arguments):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return f'{{"name": {json.dumps(call.name, ensure_ascii=False)}, "{key}": {arguments}}}'
