"""Parses a model's output into content, reasoning and tool calls: whole, or while it is sampled.

Calls are parsed only if the request offers tools. A malformed call with a recognisable name is a call whose
arguments are not JSON, as OpenAI's may be; one without a name stays in the content as it is.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from hermes.core import JSONObject, ToolCall
from hermes.engine.server.openai.text import stable_prefix
from hermes.models.parsers import ParsedText, ToolCallParser
from hermes.models.parsers.scan import NEVER, Grammar, scan
from hermes.models.render.prompting import TEXT_TOOLS_PARSER

_CALL = "<tool_call>"
FORCED_CALL = f'{_CALL}\n{{"name": "'
"""How every call begins."""
_THINK, _UNTHINK = "<think>", "</think>"


def forced_call(name: str) -> str:
    """How a call of this tool begins."""
    return f'{_CALL}\n{{"name": {json.dumps(name, ensure_ascii=False)}, "arguments": '


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    content: str
    reasoning: str
    calls: tuple[ToolCall, ...] = ()


_NOTHING = ParsedOutput("", "")


@dataclass(frozen=True, slots=True)
class OutputParser:
    """For the outputs of one request."""

    parser: ToolCallParser
    tools: tuple[JSONObject, ...]
    """The tools that the request offers."""
    thinking: bool
    """The prompt ends with an open thinking block."""
    opening: str = ""
    """The beginning of the answer, which the prompt holds already."""

    def parse(self, text: str) -> ParsedOutput:
        parsed = self._parse(text, self.tools)
        named = tuple(call for call in parsed.tool_calls if call.name)
        unnamed = [call.arguments for call in parsed.tool_calls if not call.name]
        content = "\n".join([*filter(None, [parsed.content]), *unnamed])
        return ParsedOutput(content, parsed.reasoning or "", named)

    def parse_prefix(self, text: str) -> ParsedOutput:
        """The part that is certain for every output that begins with `text`; calls are never part of it."""
        if self.tools and self.parser.name != TEXT_TOOLS_PARSER:
            return _NOTHING  # only the parser knows how its calls begin
        marks = (_THINK, _UNTHINK, _CALL) if self.tools else (_THINK, _UNTHINK)
        if self.opening:
            return _NOTHING  # a call, which is sent at the end
        stable = stable_prefix(text.partition(_CALL)[0] if self.tools else text, marks).rstrip()
        parsed = self._parse(stable, ())
        return ParsedOutput(parsed.content, parsed.reasoning or "")

    def _parse(self, text: str, tools: Sequence[JSONObject]) -> ParsedText:
        # With an opening the thinking block was closed before it.
        source = f"{_THINK}{text}" if self.thinking and not self.opening else f"{self.opening}{text}"
        return self.parser.parse(source, tools) if tools else scan(source, _NO_CALLS)


class DeltaStreamer:
    """The output as deltas: each is what was added since the last one."""

    def __init__(self, parser: OutputParser) -> None:
        self._parser = parser
        self._content = ""
        self._reasoning = ""

    def push(self, text: str) -> ParsedOutput:
        """`text` is the whole output so far."""
        output = self._parser.parse_prefix(text)
        if not (output.content.startswith(self._content) and output.reasoning.startswith(self._reasoning)):
            return _NOTHING  # the prefix was reinterpreted; `end` sends the difference
        return self._advance(output)

    def end(self, text: str) -> ParsedOutput:
        return self._advance(self._parser.parse(text))

    def _advance(self, output: ParsedOutput) -> ParsedOutput:
        content = _remainder(output.content, self._content)
        reasoning = _remainder(output.reasoning, self._reasoning)
        self._content, self._reasoning = output.content, output.reasoning
        return ParsedOutput(content, reasoning, output.calls)


def _remainder(text: str, sent: str) -> str:
    """The text that is not sent yet. The whole output may lack white space that was sent at the front."""
    for prefix in (sent, sent.lstrip()):
        if text.startswith(prefix):
            return text[len(prefix) :]
    return text


def _never(text: str, at: int, tools: Sequence[JSONObject]) -> NoReturn:
    raise AssertionError("nothing opens a call in this grammar")


_NO_CALLS = Grammar(opener=NEVER, read=_never)
