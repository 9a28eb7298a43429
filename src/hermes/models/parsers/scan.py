"""Parses an answer in one pass: thinking, calls, framing and text, in their order.

A format defines how its calls begin and are read (`Grammar`). What the formats share is here: thinking, the
extent of a malformed call and the remaining content.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

from hermes.core import JSONObject, ToolCall
from hermes.models.parsers.base import (
    MalformedCallError,
    NotACallError,
    ParsedText,
    broken_call,
)
from hermes.models.parsers.json_scan import skip_space

NEVER = "(?!)"
"""The pattern that matches nothing."""


class JsonReader(Protocol):
    def __call__(self, text: str, at: int, tools: Sequence[JSONObject]) -> tuple[list[ToolCall], int]:
        """The calls that begin at `at`, just after the opener, and where they end.

        Raises MalformedCallError or NotACallError if there are none.
        """
        ...


@dataclass(frozen=True)
class Grammar:
    opener: str
    """Pattern of what begins a call."""
    read: JsonReader
    closer: str | None = None
    """Pattern of what ends a call; None if the call's own JSON does."""
    framing: str | None = None
    """Pattern of section marks that are neither calls nor content."""
    thinking: tuple[tuple[str, str], ...] = (("<think>", "</think>"),)
    escapes: bool = True
    """True if an argument cannot contain a well-formed call, because its quotes would be escaped."""

    @cached_property
    def event(self) -> re.Pattern[str]:
        return re.compile(f"{self._marks}|(?P<framing>{self.framing or NEVER})")

    @cached_property
    def boundary(self) -> re.Pattern[str]:
        """The marks that can end a malformed call."""
        return re.compile(f"(?P<closer>{self.closer or NEVER})|{self._marks}")

    @property
    def _marks(self) -> str:
        opens, closes = ("|".join(map(re.escape, marks)) for marks in zip(*self.thinking, strict=True))
        return f"(?P<call>{self.opener})|(?P<think>{opens})|(?P<unthink>{closes})"


def scan(text: str, grammar: Grammar, tools: Sequence[JSONObject] = ()) -> ParsedText:
    """Parses an answer by `grammar`."""
    return _Scan(text, grammar, tools).run()


class _Scan:
    def __init__(self, text: str, grammar: Grammar, tools: Sequence[JSONObject]) -> None:
        self.text = text
        self.grammar = grammar
        self.tools = tools
        self.content: list[str] = []
        self.thoughts: list[str] = []
        self.calls: list[ToolCall] = []
        self.content_from = 0

    def run(self) -> ParsedText:
        steps = {"call": self._call, "think": self._think, "unthink": self._unthink, "framing": self._framing}
        at = 0
        while match := self.grammar.event.search(self.text, at):
            at = steps[match.lastgroup or ""](match)
        if self.content_from == 0:
            return ParsedText(self.text, None, ())
        self._cut(len(self.text), len(self.text))
        return ParsedText(_join(self.content), _join(self.thoughts) or None, tuple(self.calls))

    def _cut(self, start: int, end: int) -> int:
        """Removes text[start:end] from the content."""
        self.content.append(self.text[self.content_from : start])
        self.content_from = end
        return end

    def _framing(self, match: re.Match[str]) -> int:
        return self._cut(match.start(), match.end())

    def _think(self, match: re.Match[str]) -> int:
        close = dict(self.grammar.thinking)[match[0]]
        end = self.text.find(close, match.end())
        if end < 0:  # never closed: all the rest is thinking
            end, close = len(self.text), ""
        self.thoughts.append(self.text[match.end() : end])
        return self._cut(match.start(), end + len(close))

    def _unthink(self, match: re.Match[str]) -> int:
        if self.thoughts:
            return match.end()  # after real thinking a stray end is text
        # The prompt opened the thinking, so everything so far was thinking, calls included.
        self.thoughts = [self.text[: match.start()]]
        self.content, self.calls, self.content_from = [], [], match.end()
        return match.end()

    def _call(self, match: re.Match[str]) -> int:
        try:
            calls, end = self.grammar.read(self.text, match.end(), self.tools)
        except NotACallError:
            return match.end() + 1
        except MalformedCallError as error:
            end = self._extent(match, error)
            calls = [broken_call(self.text[match.start() : end], error)]
        self.calls += calls
        return self._cut(match.start(), end)

    def _extent(self, match: re.Match[str], error: MalformedCallError) -> int:
        """Where a malformed call ends, with its closer."""
        at = error.ends_at or match.end()
        while mark := self.grammar.boundary.search(self.text, at):
            if mark.lastgroup == "closer":
                return mark.end()
            if self._ends(mark, error):
                return mark.start()
            at = mark.end()
        return len(self.text)

    def _ends(self, mark: re.Match[str], error: MalformedCallError) -> bool:
        """True if a mark inside a malformed call ends that call."""
        if mark.lastgroup == "call":
            # Without escapes it may be quoted in an argument that is cut off: do not run that call.
            return self.grammar.escapes or self._resumes(mark)
        if mark.start() < error.doubtful_from:
            return False  # inside a string
        return mark.lastgroup == "think" or not self.thoughts

    def _resumes(self, opener: re.Match[str]) -> bool:
        """True if a well-formed call begins here and is followed by another call or by nothing."""
        try:
            _, end = self.grammar.read(self.text, opener.end(), self.tools)
        except (MalformedCallError, NotACallError):
            return False
        end = skip_space(self.text, end)
        following = self.grammar.boundary.match(self.text, end)
        return end == len(self.text) or (following is not None and following.lastgroup == "call")


def _join(pieces: list[str]) -> str:
    return "\n".join(piece for piece in map(str.strip, pieces) if piece)
