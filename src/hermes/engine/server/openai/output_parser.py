"""An answer taken apart: content, thinking, tool calls; whole, or while it is being written.

Calls are only looked for where tools were offered. A malformed call whose tool can be told is a call with
arguments that are no JSON, as OpenAI's own may be; one without a name stays in the content, word for word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from hermes.core import JSONObject, ToolCall
from hermes.engine.server.openai.text import held_back
from hermes.models.parsers import ParsedText, ToolCallParser
from hermes.models.parsers.scan import NEVER, Grammar, scan
from hermes.models.render.prompting import TEXT_TOOLS_PARSER

_CALL = "<tool_call>"
_THINK, _UNTHINK = "<think>", "</think>"


@dataclass(frozen=True, slots=True)
class ParsedOutput:
    content: str
    reasoning: str
    calls: tuple[ToolCall, ...] = ()


@dataclass(frozen=True, slots=True)
class OutputParser:
    """For the answers to one request."""

    parser: ToolCallParser
    tools: tuple[JSONObject, ...]
    """Those that were offered."""
    thinking: bool
    """The prompt ends with the opening of a thought."""

    def whole(self, text: str) -> ParsedOutput:
        parsed = self._parse(text, self.tools)
        named = tuple(call for call in parsed.tool_calls if call.name)
        unnamed = [call.arguments for call in parsed.tool_calls if not call.name]
        content = "\n".join([*filter(None, [parsed.content]), *unnamed])
        return ParsedOutput(content, parsed.reasoning or "", named)

    def so_far(self, text: str) -> ParsedOutput:
        """What is certain of an answer that begins like this."""
        if self.tools and self.parser.name != TEXT_TOOLS_PARSER:
            return ParsedOutput(
                "", ""
            )  # how calls begin there is the parser's own business: all comes at the end
        marks = (_THINK, _UNTHINK, _CALL) if self.tools else (_THINK, _UNTHINK)
        settled = held_back(text.partition(_CALL)[0] if self.tools else text, marks).rstrip()
        parsed = self._parse(settled, ())
        return ParsedOutput(parsed.content, parsed.reasoning or "")

    def _parse(self, text: str, tools: Sequence[JSONObject]) -> ParsedText:
        source = f"{_THINK}{text}" if self.thinking else text
        return self.parser.parse(source, tools) if tools else scan(source, _NO_CALLS)


class DeltaStreamer:
    """Tells an answer piece by piece: what is new since the last time."""

    def __init__(self, splitter: OutputParser) -> None:
        self._splitter = splitter
        self._content = ""
        self._reasoning = ""

    def so_far(self, text: str) -> ParsedOutput:
        said = self._splitter.so_far(text)
        if not (said.content.startswith(self._content) and said.reasoning.startswith(self._reasoning)):
            return ParsedOutput("", "")  # the end will say
        return self._news(said)

    def end(self, text: str) -> ParsedOutput:
        return self._news(self._splitter.whole(text))

    def _news(self, said: ParsedOutput) -> ParsedOutput:
        news = ParsedOutput(
            _rest(said.content, self._content), _rest(said.reasoning, self._reasoning), said.calls
        )
        self._content, self._reasoning = said.content, said.reasoning
        return news


def _rest(now: str, before: str) -> str:
    """What is left to tell. White space at the front may have been told that turned out to be none."""
    for told in (before, before.lstrip()):
        if now.startswith(told):
            return now[len(told) :]
    return now


def _never(text: str, at: int, tools: Sequence[JSONObject]) -> NoReturn:
    raise AssertionError("nothing opens a call in this grammar")


_NO_CALLS = Grammar(opener=NEVER, read=_never)
