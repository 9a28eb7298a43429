"""pi: a file a session, a tree of entries by `parentId`; a compaction keeps the messages from one entry on.

Forks into another file copy entries with their id and time, which together are their key. The system prompt
and the tools are in files of version 0.87 and later only. An answer that failed or was aborted is in no later
request; other messages leave them, or are replaced in them, by a `context_edit`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
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
    as_objects,
    assistant,
    count,
    cut_off,
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
_UNSENT = ("aborted", "error")
"""How an answer ends that no later request has."""
_PROMPT = ":system"
"""The end of the key of a compaction's system prompt, which is in the same line as its summary."""


@dataclass(slots=True)
class _Node:
    ref: Ref | None
    """None: an entry that is no message."""
    parent: int
    name: str
    kept_from: str | None = None
    """The first message that a compaction repeats behind its summary."""
    stop: str = ""
    system: bool = False
    """A system prompt, or a compaction that has one."""
    empty: bool = False
    """A failed answer of which nothing arrived."""
    target: str | None = None
    """The entry that is left out of later requests, or replaced in them."""
    replaced_at: int | None = None
    """The place of the line with its other content."""
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
    if kind == "context_edit":
        replaced_at = line.place if isinstance(row.get("replacement"), dict) else None
        return _Node(None, parent, name, target=str(row.get("targetId")), replaced_at=replaced_at)
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
    stop = str(message.get("stopReason") or "")
    system = message.get("role") == "system" or isinstance(row.get("systemMessage"), dict)
    arrived = [block.get("type") for block in as_objects(message.get("content"))]
    empty = stop in _UNSENT and not {"text", "toolCall"}.intersection(arrived)
    return _Node(ref, parent, name, kept_from, stop, system, empty)


def _paths(nodes: list[_Node]) -> Iterator[SessionPath]:
    for leaf in (index for index, node in enumerate(nodes) if not node.has_child):
        chain, index = [], leaf
        while index >= 0:
            chain.append(nodes[index])
            index = chain[-1].parent
        chain.reverse()
        yield from _chain_paths(chain)


def _chain_paths(chain: list[_Node]) -> Iterator[SessionPath]:
    history: list[_Node] = []
    relation: Relation | None = None
    edits: dict[str, _Node] = {}
    for position, node in enumerate(chain):
        if node.target is not None:
            edits[node.target] = node
        if node.ref is None:
            continue
        if edits or (history and history[-1].stop in _UNSENT):
            before, history = history, _sent(history, edits)
            edits = {}
            only_attempts = history == before[: len(history)] and all(
                last.empty for last in before[len(history) :]
            )
            if not only_attempts:
                yield SessionPath(_refs(before), relation, outcome=_outcome(before))
                relation = Relation.CONTINUED
        if node.kept_from is not None:
            refs = _refs(history)
            yield SessionPath(refs, relation, outcome=COMPACTED if refs and not refs[-1].answer else None)
            history, relation = _compacted(chain[:position], node), Relation.CONTINUED
            continue
        if node.system:  # its text is about what has changed
            prompts = _refs([earlier for earlier in history if earlier.system])
            places = (*node.ref.places, *(prompt.places[0] for prompt in prompts))
            node = replace(node, ref=node.ref._replace(places=places))
        history.append(node)
    yield SessionPath(_refs(history), relation, outcome=_outcome(history))


def _sent(history: list[_Node], edits: Mapping[str, _Node]) -> list[_Node]:
    """Those of the messages that the next request has; from the first changed one on they are copies."""
    end = len(history)
    while end and history[end - 1].stop in _UNSENT:
        end -= 1
    first = next((index for index, node in enumerate(history[:end]) if node.name in edits), end)
    return [*history[:first], *_copies(history[first:end], edits, "".join([*edits][-1:]))]


def _copies(nodes: list[_Node], edits: Mapping[str, _Node], reason: str) -> Iterator[_Node]:
    """The messages as input, behind the entry that is the reason; without those that an edit takes out."""
    for node in nodes:
        edit = edits.get(node.name)
        if node.ref is None or (edit is not None and edit.replaced_at is None):
            continue
        places = node.ref.places
        if edit is not None and edit.replaced_at is not None:
            places = (places[0], edit.replaced_at)
        key = f"{reason}:{node.ref.key}"
        yield replace(node, ref=node.ref._replace(key=key, places=places, answer=False, copied=True))


def _compacted(before: list[_Node], compaction: _Node) -> list[_Node]:
    """The history behind a compaction: the system prompt, the summary, what it keeps."""
    assert compaction.ref is not None
    names = [node.name for node in before]
    rest = before[names.index(compaction.kept_from) :] if compaction.kept_from in names else []
    edits = {node.target: node for node in rest if node.target is not None}
    sent = [node for node in rest if not node.system and node.kept_from is None and node.stop not in _UNSENT]
    prompt = compaction.ref._replace(key=f"{compaction.ref.key}{_PROMPT}")
    prompts = [replace(compaction, ref=prompt)] if compaction.system else []
    return [*prompts, replace(compaction, system=False), *_copies(sent, edits, compaction.name)]


def _refs(nodes: list[_Node]) -> list[Ref]:
    return [node.ref for node in nodes if node.ref is not None]


def _outcome(history: list[_Node]) -> Outcome | None:
    stop = _OUTCOMES.get(history[-1].stop if history else "")
    return Outcome(*stop) if stop else None


def _load(file: SessionFile, ref: Ref) -> Entry:
    row, *related = map(file.row, ref.places)
    if ref.key.endswith(_PROMPT):
        return _system_prompt(as_object(row.get("systemMessage")), [])
    message = as_object(row.get("message")) if row.get("type") == "message" else row
    role, content = message.get("role"), message.get("content")
    if role == "system":
        prompts = [as_object(line.get("systemMessage") or line.get("message")) for line in related]
        return _system_prompt(message, prompts)
    for edit in related:
        content = as_object(edit.get("replacement")).get("content")
    if role == "assistant":
        return _answer({**message, "content": content})
    text, images = text_and_images(message.get("summary") or content)
    if role == "toolResult":
        failed = message.get("isError") is True
        returned = result(message.get("toolCallId"), message.get("toolName"), text, images)
        took_ms = float(count(message, "durationMs"))
        return Entry(returned, ok=not failed, exit_code=_exit_code(text), duration_ms=took_ms)
    if role == "bashExecution":
        text = f"$ {message.get('command')}\n{message.get('output') or ''}"
    elif message is not row and role not in ("user", "custom", "hookMessage"):
        raise BadRowError(f"the role {role!r} is unknown")
    return Entry(Message(Role.USER, text, images=images))


def _system_prompt(message: JSONObject, earlier: list[JSONObject]) -> Entry:
    """The first one as a whole; a later one as what it changes, in pi's own words. The tools are all that
    there are from here on."""
    parts = [text_and_images(message.get("content"))[0]]
    for name, text in as_object(message.get("sections")).items():
        if text is None:
            parts += [f'Removed system prompt section "{name}".'] if earlier else []
        else:
            parts.append(f'Updated system prompt section "{name}":\n\n{text}' if earlier else str(text))
    tools: dict[str, JSONObject] = {}
    for prompt in (*earlier, message):
        for tool in as_objects(prompt.get("toolsRemoved")):
            tools.pop(str(tool.get("name")), None)
        for tool in as_objects(prompt.get("toolsAdded")):
            tools[str(tool.get("name"))] = {
                "name": str(tool.get("name")),
                "description": str(tool.get("description") or ""),
                "parameters": as_object(tool.get("parameters")),
            }
    return Entry(Message.system("\n\n".join(filter(None, parts))), tools=tuple(tools.values()))


def _answer(message: JSONObject) -> Entry:
    content = message.get("content")
    blocks = as_objects([{"type": "text", "text": content}] if isinstance(content, str) else content)
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
    took_ms = float(count(message, "durationMs"))
    stop = message.get("stopReason")
    entry = Entry(answer, as_call(model, usage, stop, cost_usd=cost or None, latency_ms=took_ms))
    return cut_off(entry) if stop in _UNSENT else entry


def _exit_code(text: str) -> int | None:
    last = text.rstrip().rpartition("\n")[2]
    number = last.removeprefix("Command exited with code ")
    return int(number) if number != last and number.isdigit() else None
