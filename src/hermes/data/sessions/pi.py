"""pi: a file a session, a tree of entries by `parentId`; a compaction keeps the messages from one entry on.

Forks into another file copy entries with their id and time, which together are their key. The system prompt
and the tools are not in the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hermes.core import Boundary, JSONObject, Message, Outcome, Relation, Role, StopReason, Usage
from hermes.data.formats.base import BadRowError
from hermes.data.sessions.base import (
    COMPACTED,
    Entry,
    Notes,
    Ref,
    Session,
    SessionPath,
    as_call,
    as_object,
    assistant,
    count,
    milliseconds,
    result,
    text_and_images,
    tool_call,
)
from hermes.data.sessions.lines import PlacedLine, SessionFile

AGENT = "pi"
_MESSAGES = ("message", "custom_message", "branch_summary", "compaction")
_OUTCOMES = {
    "aborted": (StopReason.CANCELLED, Boundary.USER),
    "error": (StopReason.ERROR, Boundary.PROVIDER),
    "length": (StopReason.TRUNCATED, Boundary.MODEL),
}


@dataclass(slots=True)
class _Node:
    ref: Ref | None
    """None: an entry that is no message."""
    parent: int
    name: str
    kept_from: str | None = None
    """The first message that a compaction repeats behind its summary."""
    stop: str = ""
    has_child: bool = False


def read(root: Path, path: Path, notes: Notes) -> Iterator[Session]:
    file = SessionFile(root, path)
    try:
        head: JSONObject = {}
        nodes: list[_Node] = []
        by_name: dict[str, int] = {}
        for line in file.rows(notes):
            kind = line.row.get("type")
            if kind == "session":
                head = head or line.row
                continue
            if kind not in _MESSAGES:
                notes.ignored[str(kind)] += 1
            node = _node(line, by_name, len(nodes))
            if node.parent >= 0:
                nodes[node.parent].has_child = True
            by_name[node.name] = len(nodes)
            nodes.append(node)
        if not head:
            notes.problem(1, "no line of type 'session'")
        yield Session(
            id=str(head.get("id") or path.stem),
            agent=AGENT,
            version=None,
            file=str(path),
            paths=_paths(nodes),
            load=lambda ref: _load(file, ref),
            line=lambda ref: file.number(ref.places[0]),
            cwd=str(head["cwd"]) if "cwd" in head else None,
            updated_ms=file.updated_ms,
        )
    finally:
        file.close()


def _node(line: PlacedLine, by_name: dict[str, int], position: int) -> _Node:
    """A session of version 1 has no ids: each entry follows the one before it."""
    row, kind = line.row, line.row.get("type")
    name = str(row.get("id") or f"line {position}")
    parent = position - 1
    if "parentId" in row:
        parent = -1 if row["parentId"] is None else by_name.get(str(row["parentId"]), position - 1)
    message = as_object(row.get("message"))
    hidden = message.get("excludeFromContext") is True or (
        kind == "branch_summary" and not row.get("summary")
    )
    if kind not in _MESSAGES or hidden:
        return _Node(None, parent, name)
    at = row.get("timestamp")
    answer = message.get("role") == "assistant"
    ref = Ref(f"{name}:{at}", milliseconds(at), (line.place,), line.size_bytes, answer)
    kept_from = str(row.get("firstKeptEntryId") or "") if kind == "compaction" else None
    return _Node(ref, parent, name, kept_from, str(message.get("stopReason") or ""))


def _paths(nodes: list[_Node]) -> Iterator[SessionPath]:
    for leaf in (index for index, node in enumerate(nodes) if not node.has_child):
        chain, index = [], leaf
        while index >= 0:
            chain.append(nodes[index])
            index = chain[-1].parent
        chain.reverse()
        refs: list[Ref] = []
        relation = None
        for position, node in enumerate(chain):
            if node.kept_from is not None and node.ref is not None:
                cut = COMPACTED if refs and not refs[-1].answer else None
                yield SessionPath(refs, relation, outcome=cut)
                refs, relation = [node.ref, *_kept(chain[:position], node)], Relation.CONTINUED
            elif node.ref is not None:
                refs.append(node.ref)
        stop = _OUTCOMES.get(next((node.stop for node in reversed(chain) if node.ref), ""))
        yield SessionPath(refs, relation, outcome=Outcome(*stop) if stop else None)


def _kept(before: list[_Node], compaction: _Node) -> list[Ref]:
    first = next(
        (index for index, node in enumerate(before) if node.name == compaction.kept_from), len(before)
    )
    refs = [node.ref for node in before[first:] if node.ref is not None]
    return [ref._replace(key=f"{compaction.name}:{ref.key}", copied=True) for ref in refs]


def _load(file: SessionFile, ref: Ref) -> Entry:
    row = file.row(ref.places[0])
    if row.get("type") != "message":
        text, images = text_and_images(row.get("summary") or row.get("content"))
        return Entry(Message(Role.USER, text, images=images))
    message = as_object(row.get("message"))
    role, content = message.get("role"), message.get("content")
    if role == "assistant":
        return _answer(message)
    text, images = text_and_images(content)
    if role == "toolResult":
        failed = message.get("isError") is True
        returned = result(message.get("toolCallId"), message.get("toolName"), text, images)
        return Entry(returned, ok=not failed, exit_code=_exit_code(text))
    if role == "bashExecution":
        text = f"$ {message.get('command')}\n{message.get('output') or ''}"
    elif role not in ("user", "custom", "hookMessage"):
        raise BadRowError(f"the role {role!r} is unknown")
    return Entry(Message(Role.USER, text, images=images))


def _answer(message: JSONObject) -> Entry:
    content = message.get("content")
    blocks = [block for block in content if isinstance(block, dict)] if isinstance(content, list) else []
    answer = assistant(
        (str(block.get("text") or "") for block in blocks if block.get("type") == "text"),
        (str(block.get("thinking") or "") for block in blocks if block.get("type") == "thinking"),
        (
            tool_call(block.get("id"), block.get("name"), block.get("arguments") or {})
            for block in blocks
            if block.get("type") == "toolCall"
        ),
    )
    used = as_object(message.get("usage"))
    usage = Usage(
        count(used, "input"), count(used, "cacheRead"), count(used, "cacheWrite"), count(used, "output")
    )
    model = "/".join(str(message[name]) for name in ("provider", "model") if message.get(name))
    cost = as_object(used.get("cost")).get("total")
    return Entry(answer, as_call(model, usage, message.get("stopReason"), cost_usd=cost or None))


def _exit_code(text: str) -> int | None:
    last = text.rstrip().rpartition("\n")[2]
    number = last.removeprefix("Command exited with code ")
    return int(number) if number != last and number.isdigit() else None
