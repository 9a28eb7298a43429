"""The interface of tool-call parsers. Every parser promises:

- `parse` never raises, whatever the text.
- A malformed call becomes a `ToolCall` with `error` set and its text, markup included, in
  `arguments`. It never hides its well-formed neighbours.
- Text inside thinking is never a call. Markup inside an argument is never a call's end.
- `render` writes what `parse` reads back: same names, same arguments, same order. Where a format
  has no way to write a value, `render` raises ValueError with the reason. A malformed call that
  `parse` found is written back unchanged.

Not promised: that the tool exists or that the arguments fit its schema; `tools.execute` checks that.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from hermes.core import JSONObject, ToolCall


@dataclass(frozen=True, slots=True)
class ParsedText:
    """The parts of an answer."""

    content: str
    """The text outside calls and thinking; exactly the answer if it has neither."""
    reasoning: str | None
    """The thinking, outer white space removed; None if there was none."""
    tool_calls: tuple[ToolCall, ...]


class ToolCallParser(Protocol):
    @property
    def name(self) -> str: ...

    def parse(self, text: str, tools: Sequence[JSONObject] = ()) -> ParsedText:
        """`tools` (plain or in OpenAI's 'function' envelope) type the values of formats that do not."""
        ...

    def render(self, calls: Sequence[ToolCall]) -> str: ...


class MalformedCallError(ValueError):
    """A call that cannot be read as written. Stays inside this package."""

    def __init__(
        self,
        reason: str,
        *,
        name: str = "",
        stopped_at: int = 0,
        doubtful_from: int = 0,
        ends_at: int | None = None,
    ) -> None:
        super().__init__(reason)
        self.name = name
        """The tool's name, where it could still be read."""
        self.stopped_at = stopped_at
        """Where reading failed."""
        self.doubtful_from = doubtful_from
        """Where the last string begins if reading failed inside it, else where reading failed: marks before
        it are inside strings, marks after it may be real."""
        self.ends_at = ends_at
        """Where the call's JSON ends, if that much is certain."""


class NotACallError(ValueError):
    """Text that looked like a call is ordinary text. Stays inside this package."""


def new_call_id() -> str:
    return f"call_{os.urandom(4).hex()}"


def broken_call(raw: str, error: MalformedCallError, call_id: str | None = None) -> ToolCall:
    return ToolCall(call_id or new_call_id(), error.name, raw, error=str(error))
