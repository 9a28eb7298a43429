"""Calls between special tokens, the name outside the JSON: DeepSeek V3, V3.1 and Kimi K2.

- `deepseek_v3`: `<｜tool▁call▁begin｜>function<｜tool▁sep｜>NAME`, a fenced JSON block, `<｜tool▁call▁end｜>`
- `deepseek_v3_1`: `<｜tool▁call▁begin｜>NAME<｜tool▁sep｜>JSON<｜tool▁call▁end｜>`
- `kimi_k2`: `<|tool_call_begin|>functions.NAME:INDEX<|tool_call_argument_begin|>JSON<|tool_call_end|>`, where
  the text before the JSON is also the call's id

All calls of an answer are in one section. Its marks are written, but not required when reading.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from hermes.core import JSONObject, ToolCall
from hermes.models.parsers.base import MalformedCallError, ParsedText, new_call_id
from hermes.models.parsers.json_scan import decode_object_at
from hermes.models.parsers.objects import NAME, argument_text, checked_name
from hermes.models.parsers.scan import Grammar, scan


@dataclass(frozen=True, slots=True)
class FormatMarkers:
    """The special tokens of one format."""

    section_begin: str
    section_end: str
    begin: str
    end: str
    head: re.Pattern[str]
    """From after `begin` to the JSON; group 'name', and group 'id' if the format has one."""
    tail: re.Pattern[str]
    """Between the JSON and `end`."""
    write: Callable[[ToolCall, int], str]
    """One call, by its index in the answer, without `begin` and `end`."""
    between: str
    """Between two calls."""


def _write_v3(call: ToolCall, index: int) -> str:
    return f"function<｜tool▁sep｜>{checked_name(call)}\n```json\n{argument_text(call)}\n```"


def _write_v3_1(call: ToolCall, index: int) -> str:
    return f"{checked_name(call)}<｜tool▁sep｜>{argument_text(call)}"


_KIMI_ID = re.compile(rf"(?:functions\.)?(?P<name>{NAME}):\d+")


def _write_kimi(call: ToolCall, index: int) -> str:
    name = checked_name(call)
    kimi_id = _KIMI_ID.fullmatch(call.id)
    call_id = call.id if kimi_id and kimi_id["name"] == name else f"functions.{name}:{index}"
    return f"{call_id}<|tool_call_argument_begin|>{argument_text(call)}"


def _deepseek(head: str, tail: str, write: Callable[[ToolCall, int], str], between: str) -> FormatMarkers:
    return FormatMarkers(
        section_begin="<｜tool▁calls▁begin｜>",
        section_end="<｜tool▁calls▁end｜>",
        begin="<｜tool▁call▁begin｜>",
        end="<｜tool▁call▁end｜>",
        head=re.compile(head),
        tail=re.compile(tail),
        write=write,
        between=between,
    )


DEEPSEEK_V3 = _deepseek(
    rf"\s*\w+\s*<｜tool▁sep｜>\s*(?P<name>{NAME})\s*```(?:json)?\s*", r"\s*(?:```)?\s*", _write_v3, "\n"
)
DEEPSEEK_V3_1 = _deepseek(rf"\s*(?P<name>{NAME})\s*<｜tool▁sep｜>\s*", r"\s*", _write_v3_1, "")
KIMI_K2 = FormatMarkers(
    section_begin="<|tool_calls_section_begin|>",
    section_end="<|tool_calls_section_end|>",
    begin="<|tool_call_begin|>",
    end="<|tool_call_end|>",
    head=re.compile(
        rf"\s*(?P<id>(?:functions\.)?(?P<name>{NAME}?)(?::\d+)?)\s*<\|tool_call_argument_begin\|>\s*"
    ),
    tail=re.compile(r"\s*"),
    write=_write_kimi,
    between="",
)


@dataclass(frozen=True)
class MarkedParser:
    name: str
    marks: FormatMarkers

    @cached_property
    def _grammar(self) -> Grammar:
        marks = self.marks
        section_end = re.escape(marks.section_end)
        return Grammar(
            opener=re.escape(marks.begin),
            closer=f"{re.escape(marks.end)}|{section_end}",
            framing=f"{re.escape(marks.section_begin)}|{section_end}",
            read=self._read,
        )

    def _read(self, text: str, at: int, tools: Sequence[JSONObject]) -> tuple[list[ToolCall], int]:
        marks = self.marks
        head = marks.head.match(text, at)
        if head is None:
            raise MalformedCallError("the call does not begin with a name and its separator")
        name = head["name"]
        arguments = decode_object_at(text, head.end(), name)
        tail = marks.tail.match(text, arguments.end)
        end = tail.end() if tail else arguments.end
        if text.startswith(marks.end, end):
            end += len(marks.end)
        elif end < len(text) and not text.startswith((marks.begin, marks.section_end), end):
            raise MalformedCallError("text after the call's JSON", name=name, ends_at=arguments.end)
        call_id = head.groupdict().get("id") or new_call_id()
        return [ToolCall(call_id, name, text[arguments.start : arguments.end])], end

    def parse(self, text: str, tools: Sequence[JSONObject] = ()) -> ParsedText:
        return scan(text, self._grammar, tools)

    def render(self, calls: Sequence[ToolCall]) -> str:
        marks = self.marks
        written = marks.between.join(self._render_call(call, index) for index, call in enumerate(calls))
        return f"{marks.section_begin}{written}{marks.section_end}" if calls else ""

    def _render_call(self, call: ToolCall, index: int) -> str:
        marks = self.marks
        if call.error and call.arguments.startswith(marks.begin):
            return call.arguments
        return f"{marks.begin}{marks.write(call, index)}{marks.end}"
