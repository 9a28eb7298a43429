"""Folded states: what replaces a tool output, or several exchanges.

A state is a JSON object whose first key is `folded`, so that people and a later compression can distinguish
it from a tool's output. It holds only parts of the output: fields of a JSON result, lines, words. It never
explains or guesses. Where the row has room for more, it also has the beginning and the end of the output,
`head` and `tail`. The same output and facts always give the same state.

    {"folded": {"chars": 18234, "lines": 312}, "values": {"exit_code": 1}, "errors": ["E  assert 3 == 4"],
     "lines": ["def total(rows):", …], "facts": ["src/totals.py", "391"]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from enum import IntEnum

from hermes.core import JSON, JSONObject, ToolCall

# Each way begins with a letter, not with a choice of letters: the search is three times as fast for it.
_ERROR = re.compile(
    r"error\b|Error\b|ERROR|Exception|Traceback|failed|Failed|FAILED|fatal|Fatal|denied|not found|No such"
    r"|panic"
)
_LINE_CHARS = 120
_VALUE_CHARS = 80
_MAX_VALUES = 8
_MAX_ERRORS = 3
_MAX_CALLS = 12
_MAX_SCANNED_ERRORS = 40


class FoldLevel(IntEnum):
    """How much of an output is left."""

    STATE = 1
    """Its fields, its errors, and the lines that state what later turns use."""
    FACTS = 2
    """One error and the bare words that later turns use."""
    BARE = 3
    """A state that says it was there, and how long it was."""


def is_state(content: str) -> bool:
    return parse_state(content) is not None


def parse_state(content: str) -> JSONObject | None:
    """The state, if the content is one."""
    if not content.startswith('{"folded": {"chars": '):
        return None
    try:
        value = json.loads(content)
    except ValueError:
        return None
    return value if isinstance(value, dict) and isinstance(value.get("folded"), dict) else None


def fold_output(content: str, facts: Sequence[str], level: FoldLevel, max_chars: int) -> str:
    """The state of one output. An output that is a state already only ever loses parts."""
    earlier = parse_state(content)
    if earlier is not None:
        return _dump(_reduce(earlier, facts, level))
    state: JSONObject = {"folded": {"chars": len(content), "lines": content.count("\n") + 1}}
    if level is FoldLevel.BARE:
        return _dump(state)
    values, text = _fields(content)
    room = max_chars
    if level is FoldLevel.STATE:
        state["values"] = _take_values(values.items(), room)
        room -= _chars(state["values"])
    errors = _error_lines(text)[: _MAX_ERRORS if level is FoldLevel.STATE else 1]
    state["errors"] = [line for line in errors if _chars(line) <= room]
    room -= _chars(state["errors"])
    if level is FoldLevel.STATE:
        state["lines"], room = _fact_lines(text, facts, state["errors"], room)
    stated = "\n".join(state["errors"] + state.get("lines", []))
    state["facts"] = take_fitting(
        [_with_path_prefix(text, fact) for fact in facts if fact not in stated], room
    )
    return _dump(state)


def with_excerpt(folded: str, content: str, max_chars: int) -> str:
    """The state of an output with its beginning and end, half of `max_chars` each, as far as it has them.

    A state that a model wrote, and one of several exchanges, stays as it is.
    """
    state, earlier = parse_state(folded), parse_state(content)
    if state is None or "summary" in state or "exchanges" in state["folded"]:
        return folded
    half = max_chars // 2
    source = (content, content) if earlier is None else (earlier.get("head", ""), earlier.get("tail", ""))
    return _dump({**state, "head": source[0][:half], "tail": source[1][max(0, len(source[1]) - half) :]})


def fold_exchanges(
    outputs: Sequence[str], calls: Sequence[ToolCall], facts: Sequence[str], exchanges: int, max_chars: int
) -> str:
    """The state of several exchanges, which replaces the first result of the first of them.

    `calls` are those of the exchanges that are left out; the first exchange keeps its own.
    """
    earlier = [parse_state(output) for output in outputs]
    sizes = [state["folded"] if state else None for state in earlier]
    chars = sum(size["chars"] if size else len(text) for size, text in zip(sizes, outputs, strict=True))
    merged = sum(size.get("exchanges", 1) - 1 for size in sizes if size)
    call_lines = [line for state in earlier if state for line in state.get("calls", ())]
    call_lines += [_call_line(call) for call in calls]
    errors = [line for text in outputs for line in _error_lines(text)[-1:]][-_MAX_ERRORS:]
    state: JSONObject = {"folded": {"chars": chars, "exchanges": exchanges + merged}}
    room = max_chars
    state["calls"] = take_fitting(call_lines[:_MAX_CALLS], room)
    room -= _chars(state["calls"])
    state["errors"] = take_fitting(errors, room)
    state["facts"] = take_fitting(list(facts), room - _chars(state["errors"]))
    return _dump(state)


def with_summary(content: str, summary: str, exchanges: int = 0) -> str:
    """The state of an output, or of exchanges, in a model's words."""
    folded: JSONObject = {"chars": len(content)}
    if exchanges:
        folded["exchanges"] = exchanges
    return _dump({"folded": folded, "summary": summary})


def _reduce(state: JSONObject, facts: Sequence[str], level: FoldLevel) -> JSONObject:
    if level is FoldLevel.STATE:
        return {key: value for key, value in state.items() if key not in ("head", "tail")}
    keys = ("folded", "calls") if level is FoldLevel.BARE else ("folded", "calls", "summary")
    reduced = {key: state[key] for key in keys if key in state}
    if level is FoldLevel.FACTS:
        reduced["errors"] = state.get("errors", [])[:1]
        stated = json.dumps(reduced, ensure_ascii=False)
        reduced["facts"] = [fact for fact in facts if fact not in stated]
    return reduced


def _dump(state: JSONObject) -> str:
    text = json.dumps({key: value for key, value in state.items() if value}, ensure_ascii=False)
    # JSON inside a result can spell lone surrogates, which neither tokenizers nor loaders take.
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _fields(content: str) -> tuple[JSONObject, str]:
    """Short scalar fields of a JSON result, and the text to look for lines in."""
    if not content.startswith("{"):
        return {}, content
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        return {}, content
    if not isinstance(data, dict):
        return {}, content
    short = {key: value for key, value in data.items() if _is_short(value)}
    texts = [value for value in data.values() if isinstance(value, str) and not _is_short(value)]
    return dict(list(short.items())[:_MAX_VALUES]), "\n".join(texts) or content


def _is_short(value: JSON) -> bool:
    if isinstance(value, str):
        return len(value) <= _VALUE_CHARS and "\n" not in value
    return isinstance(value, int | float | bool)


def _error_lines(text: str) -> list[str]:
    """The first and the last error lines."""
    lines: dict[str, None] = {}
    at = 0
    for _ in range(_MAX_SCANNED_ERRORS):
        match = _ERROR.search(text, at)
        if match is None:
            break
        line, at = _line_around(text, match.start(), match.end())
        lines[line] = None
    unique = list(lines)
    return unique if len(unique) <= _MAX_ERRORS else [unique[0], *unique[-(_MAX_ERRORS - 1) :]]


def _fact_lines(text: str, facts: Iterable[str], errors: Sequence[str], room: int) -> tuple[list[str], int]:
    """Lines that state the facts, in the text's order, and the room that is left."""
    positions: dict[str, int] = {}
    stated = "\n".join(errors)
    for fact in facts:
        at = -1 if fact in stated else text.find(fact)
        if at < 0:
            continue
        line, _ = _line_around(text, at, at + len(fact))
        if line in positions or _chars(line) > room:
            continue
        positions[line] = at
        room -= _chars(line)
        stated += "\n" + line
    return sorted(positions, key=positions.__getitem__), room


def _line_around(text: str, start: int, end: int) -> tuple[str, int]:
    """The line that has text[start:end], clipped around it, and where the next one begins."""
    first = text.rfind("\n", 0, start) + 1
    last = text.find("\n", end)
    last = len(text) if last < 0 else last
    if last - first > _LINE_CHARS:
        spare = max(0, _LINE_CHARS - (end - start)) // 2
        line = text[max(first, start - spare) : min(last, end + spare)]
        return line.strip(), max(end, min(last, end + spare))
    return text[first:last].strip(), last


def _with_path_prefix(text: str, fact: str) -> str:
    """The fact with the marks before it that belong to a path: `usr/bin` may be `/usr/bin`."""
    end = text.find(fact)
    start = end
    while start > 0 and text[start - 1] in "/~.":
        start -= 1
    return text[start:end] + fact if end > 0 else fact


def _call_line(call: ToolCall) -> str:
    text = f"{call.name} {call.arguments}"
    return text if len(text) <= _LINE_CHARS else text[: _LINE_CHARS - 1] + "…"


def take_fitting(entries: Iterable[str], room: int) -> list[str]:
    """As many entries as there is room for, in characters."""
    chosen: list[str] = []
    for entry in entries:
        if _chars(entry) <= room:
            chosen.append(entry)
            room -= _chars(entry)
    return chosen


def _take_values(items: Iterable[tuple[str, JSON]], room: int) -> JSONObject:
    values: JSONObject = {}
    for key, value in items:
        size = len(key) + len(str(value)) + 8
        if size <= room:
            values[key] = value
            room -= size
    return values


def _chars(value: JSON) -> int:
    """Room that a value takes in the state's text."""
    if isinstance(value, str):
        return len(value) + 4
    return len(json.dumps(value, ensure_ascii=False)) if value else 0
