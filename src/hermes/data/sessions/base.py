"""The result of reading a client's file: sessions, their paths, and the entries on them.

A path is what a model was shown, from its first message to its last: a fork, a rewound question and a
compaction each begin another one. The index of a session is small; messages are read when they are stored.
An entry's key is the same in every copy that the client makes of it, so that a fork is recognised in another
file.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from hermes.core import (
    JSON,
    Boundary,
    JSONObject,
    Message,
    ModelCall,
    Outcome,
    Relation,
    Role,
    Sampling,
    StopReason,
    ToolCall,
    Usage,
)
from hermes.core.model_call import INTERRUPTED
from hermes.data.example import IMPORTED

COMPACTED = Outcome(StopReason.CONTEXT_FULL, Boundary.LIMIT, detail="the client went on with another history")
"""The end of a path in the middle of its work."""


_LAST_MS = 1 << 47


class Ref(NamedTuple):
    """An entry's place in its file."""

    key: str
    at_ms: int
    places: tuple[int, ...]
    """Where the reader finds its lines or rows."""
    size_bytes: int
    answer: bool = False
    copied: bool = False
    """It stands again behind a compaction: input there, whoever wrote it."""
    cut: bool = False
    """An answer of which only the beginning arrived."""
    link: str | None = None
    """The id that the sub-agent it started names as its origin."""


@dataclass(frozen=True, slots=True)
class Entry:
    message: Message
    call: ModelCall | None = None
    """None: an input, or an answer that no model gave."""
    ok: bool = True
    exit_code: int | None = None
    duration_ms: float = 0.0
    tools: tuple[JSONObject, ...] | None = None
    """The tools on offer from here on, by name, description and parameters; None: they stay as they are."""


@dataclass(frozen=True, slots=True)
class SessionPath:
    refs: Sequence[Ref]
    relation: Relation | None = None
    """Its relation to the path that `origins` name; without origins, to the session's path before it."""
    origins: tuple[str, ...] = ()
    """Links of entries, and ids of sessions: the first that is known is the parent."""
    outcome: Outcome | None = None
    """How it ended, where the client says so."""


@dataclass(frozen=True, slots=True)
class Session:
    id: str
    agent: str
    version: str | None
    file: str
    paths: Iterable[SessionPath]
    load: Callable[[Ref], Entry]
    """BadRowError: the entry cannot be read."""
    line: Callable[[Ref], int]
    """The line of an entry, for reports; of a database, the row."""
    cwd: str | None = None
    updated_ms: int = 0


class SessionProblem(NamedTuple):
    line: int
    why: str


@dataclass
class Notes:
    """A line or entry that a reader could not use."""

    problems: list[SessionProblem] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    """Lines that are no messages, by their type."""

    def problem(self, line: int, why: str) -> None:
        self.problems.append(SessionProblem(line, why))


Read = Callable[[Path, Path, Notes], Iterable[Session]]
"""A root folder, a path in it, and the notes that the reader adds to."""


def as_call(
    model: object, usage: Usage, finish_reason: object, *, cost_usd: object = None, latency_ms: float = 0.0
) -> ModelCall:
    """A recorded model call of which no sampling and no tokens are known."""
    cost = float(cost_usd) if isinstance(cost_usd, int | float) else None
    reason = finish_reason if isinstance(finish_reason, str) else "unknown"
    return ModelCall(str(model or "unknown"), IMPORTED, Sampling(), reason, usage, latency_ms, cost)


def cut_off(entry: Entry) -> Entry:
    """The answer as one that broke off, from which nobody learns to end there."""
    return replace(entry, call=replace(entry.call, finish_reason=INTERRUPTED)) if entry.call else entry


def assistant(texts: Iterable[str], thoughts: Iterable[str], calls: Iterable[ToolCall]) -> Message:
    thinking = "\n\n".join(text for text in thoughts if text)
    content = "\n\n".join(text for text in texts if text)
    return Message.assistant(content, reasoning=thinking or None, tool_calls=tuple(calls))


def tool_call(call_id: object, name: object, arguments: JSON) -> ToolCall:
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return ToolCall(str(call_id or ""), str(name or ""), text)


def result(call_id: object, name: object, text: str, images: tuple[str, ...] = ()) -> Message:
    return Message(
        Role.TOOL, text, tool_call_id=str(call_id or ""), name=str(name) if name else None, images=images
    )


def text_and_images(content: object) -> tuple[str, tuple[str, ...]]:
    """The text of a message's parts in any client's words, and its images as addresses."""
    if isinstance(content, str):
        return content, ()
    texts, images = [], []
    for part in content if isinstance(content, list) else ():
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, dict) and isinstance(part.get("text"), str):
            texts.append(part["text"])
        elif isinstance(part, dict) and (address := _image(part)):
            images.append(address)
    return "\n".join(texts), tuple(images)


def _image(part: JSONObject) -> str | None:
    address = part.get("image_url") or part.get("url")
    if isinstance(address, dict):
        address = address.get("url")
    source: Any = part.get("source") if isinstance(part.get("source"), dict) else part
    data, kind = source.get("data"), source.get("media_type") or source.get("mimeType")
    if isinstance(data, str) and isinstance(kind, str):
        return f"data:{kind};base64,{data}"
    return address if isinstance(address, str) else None


def milliseconds(value: object) -> int:
    """Unix milliseconds of an ISO time, of seconds or of milliseconds; 0 if it is none of them."""
    if isinstance(value, int | float) and not isinstance(value, bool):
        number = value if value > 1e11 else value * 1000
    else:
        try:
            number = datetime.fromisoformat(str(value)).timestamp() * 1000
        except (ValueError, OverflowError):
            return 0
    return int(number) if 0 < number < _LAST_MS else 0


def as_object(value: object) -> JSONObject:
    return value if isinstance(value, dict) else {}


def as_objects(value: object) -> list[JSONObject]:
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def count(values: JSONObject, *names: str) -> int:
    """The sum of the token counts of these names."""
    numbers = (values.get(name) for name in names)
    return sum(number for number in numbers if isinstance(number, int) and number > 0)


def session_client(row: JSONObject) -> str | None:
    """The client that writes such a line among its first ones; None: none that is known here."""
    kind = row.get("type")
    if kind == "session_meta" or ("instructions" in row and "timestamp" in row and "id" in row):
        return "codex"
    if kind == "session":  # a session trace has a harness, and as a row of a table its messages
        return "pi" if "cwd" in row and "harness" not in row and "messages" not in row else None
    return "claude-code" if isinstance(row.get("sessionId"), str) and isinstance(kind, str) else None
