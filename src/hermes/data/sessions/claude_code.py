"""Claude Code: a file a session, a file a sub-agent, a content block a line, joined to a tree.

Lines with one `message.id` are one answer, and repeat its usage. Results belong to their call, wherever the
tree puts them. A boundary of a compaction begins another path; what it says was kept is input there. The
system prompt, the tools and the attachments are not in the file as the model saw them, and so not in the
trajectory.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hermes.core import Boundary, JSONObject, Message, Outcome, Relation, Role, StopReason, ToolCall, Usage
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
    cut_off,
    milliseconds,
    result,
    text_and_images,
    tool_call,
)
from hermes.data.sessions.lines import PlacedLine, SessionFile

AGENT = "claude-code"
_INTERRUPTED = "[Request interrupted by user"
_CUT = ("[Request interrupted by user]", "Your response above was cut off mid-stream")
"""The beginnings of texts that Claude Code, and not the user, says behind an answer that broke off."""
_MESSAGES = ("user", "assistant")


@dataclass(slots=True)
class _Node:
    """A question, an answer in all its lines, or a compaction's boundary, with the results of its calls."""

    ref: Ref
    parent: int
    results: list[Ref] = field(default_factory=list)
    boundary: bool = False
    again: list[str] = field(default_factory=list)
    """The messages that a compaction repeats behind its summary."""
    sidechain: bool = False
    outcome: Outcome | None = None
    has_child: bool = False


def read(root: Path, path: Path, notes: Notes) -> Iterator[Session]:
    file = SessionFile(root, path)
    try:
        tree = _Tree()
        for line in file.rows(notes):
            tree.add(line, file.number(line.place), notes)
        if not tree.session_id:
            return
        yield Session(
            id=tree.session_id,
            agent=AGENT,
            version=tree.version,
            file=str(path),
            paths=tree.paths(_call_of(path)),
            load=lambda ref: _load(file, ref),
            line=lambda ref: file.number(ref.places[0]),
            cwd=tree.cwd,
            updated_ms=file.updated_ms,
        )
    finally:
        file.close()


def _call_of(path: Path) -> tuple[str, ...]:
    """The call that started a sub-agent, by the small file beside its session."""
    if not path.name.startswith("agent-"):
        return ()
    try:
        return (str(json.loads(path.with_suffix(".meta.json").read_text("utf-8")[:65536])["toolUseId"]),)
    except (OSError, ValueError, KeyError, TypeError):
        return ()


class _Tree:
    def __init__(self) -> None:
        self.session_id = ""
        self.version: str | None = None
        self.cwd: str | None = None
        self._nodes: list[_Node] = []
        self._by_uuid: dict[str, int] = {}
        self._by_answer: dict[tuple[str, bool], int] = {}
        self._by_call: dict[str, int] = {}

    def add(self, line: PlacedLine, number: int, notes: Notes) -> None:
        row, kind = line.row, line.row.get("type")
        self.session_id = self.session_id or str(row.get("sessionId") or "")
        self.version = str(row["version"]) if "version" in row else self.version
        self.cwd = self.cwd or (str(row["cwd"]) if "cwd" in row else None)
        uuid = row.get("uuid")
        if not isinstance(uuid, str):
            if kind in _MESSAGES:
                notes.problem(number, "a message without a uuid")
            else:
                notes.ignored[str(kind)] += 1
            return
        if uuid in self._by_uuid:
            return  # written twice
        parent = self._parent(row)
        if kind == "system" and row.get("subtype") == "compact_boundary":
            names = as_object(as_object(row.get("compactMetadata")).get("preservedMessages")).get("uuids")
            node = _Node(_ref(line, uuid), -1, boundary=True)
            node.again = [str(name) for name in names] if isinstance(names, list) else []
            self._append(node, uuid)
            before = self._by_uuid.get(str(row.get("logicalParentUuid")), -1)
            if before >= 0 and self._nodes[before].results:
                self._nodes[before].outcome = COMPACTED
        elif kind in _MESSAGES:
            message = row.get("message")
            if not isinstance(message, dict) or "content" not in message:
                notes.problem(number, f"a line of type '{kind}' without a message")
                self._by_uuid[uuid] = parent
            else:
                self._message(line, uuid, parent, message, number, notes)
        else:
            notes.ignored[str(kind)] += 1
            self._by_uuid[uuid] = parent

    def _parent(self, row: JSONObject) -> int:
        """A line whose parent is lost with a damaged one follows the line before it."""
        name = row.get("parentUuid")
        return -1 if name is None else self._by_uuid.get(str(name), len(self._nodes) - 1)

    def _append(self, node: _Node, uuid: str) -> None:
        if node.parent >= 0:
            self._nodes[node.parent].has_child = True
        self._by_uuid[uuid] = len(self._nodes)
        self._nodes.append(node)

    def _message(
        self, line: PlacedLine, uuid: str, parent: int, message: JSONObject, number: int, notes: Notes
    ) -> None:
        row, sidechain = line.row, bool(line.row.get("isSidechain"))
        blocks = message["content"] if isinstance(message["content"], list) else []
        if row["type"] == "assistant":
            if row.get("isApiErrorMessage"):
                self._by_uuid[uuid] = parent
                if parent >= 0:
                    text = text_and_images(message["content"])[0]
                    self._nodes[parent].outcome = Outcome(
                        StopReason.ERROR, Boundary.PROVIDER, detail=text[:500]
                    )
                return
            answer = (str(message.get("id") or uuid), sidechain)
            index = self._by_answer.get(answer)
            if index is None:
                index = self._by_answer[answer] = len(self._nodes)
                self._append(_Node(_ref(line, uuid, answer=True), parent, sidechain=sidechain), uuid)
            else:
                node = self._nodes[index]
                node.ref = _joined(node.ref, line, uuid)
                self._by_uuid[uuid] = index
            for block in blocks:
                if isinstance(block, dict) and block.get("type") == "tool_use":
                    self._by_call[str(block.get("id"))] = index
            return
        results = {
            position: name
            for position, block in enumerate(blocks)
            if isinstance(block, dict) and (name := _result_of(block)) is not None
        }
        owner = next((self._by_call[name] for name in results.values() if name in self._by_call), None)
        if results and owner is None:
            notes.problem(number, "a result of a call that is not in the file")
            if len(results) == len(blocks):
                self._by_uuid[uuid] = parent
                return
        if owner is not None:
            for position, name in results.items():
                ref = Ref(
                    f"{uuid}:{position}", _at_ms(row), (line.place, position), line.size_bytes, link=name
                )
                self._nodes[owner].results.append(ref)
            self._by_uuid[uuid] = owner
            if len(results) == len(blocks):
                return
            parent = owner
        node = _Node(_ref(line, uuid), parent, sidechain=sidechain)
        text = text_and_images(message["content"])[0]
        if text.startswith(_INTERRUPTED):
            node.outcome = Outcome(StopReason.CANCELLED, Boundary.USER)
        if parent >= 0 and text.startswith(_CUT) and not self._nodes[parent].results:
            before = self._nodes[parent]  # with a call it was whole: the call was interrupted
            before.ref = before.ref._replace(cut=before.ref.answer and parent not in self._by_call.values())
        self._append(node, uuid)

    def paths(self, call: tuple[str, ...]) -> Iterator[SessionPath]:
        """One for each leaf, those of sub-agents last. `call`: what started the session, if it is of one."""
        for index, node in sorted(enumerate(self._nodes), key=lambda item: item[1].sidechain):
            if node.has_child or node.boundary:
                continue
            chain = []
            while index >= 0:
                chain.append(self._nodes[index])
                index = chain[-1].parent
            chain.reverse()
            refs = [ref for entry in chain for ref in self._refs(entry)]
            relation: Relation | None = None
            origins: tuple[str, ...] = ()
            if chain[0].boundary:
                refs[1:1] = self._kept(chain[0])
                relation = Relation.CONTINUED
            elif chain[0].sidechain:
                relation, origins = Relation.DELEGATE, (*call, self.session_id)
            yield SessionPath(refs, relation, origins, node.outcome)

    def _refs(self, node: _Node) -> list[Ref]:
        return [] if node.boundary else [node.ref, *node.results]

    def _kept(self, boundary: _Node) -> list[Ref]:
        nodes = dict.fromkeys(self._by_uuid[name] for name in boundary.again if name in self._by_uuid)
        refs = [ref for index in nodes for ref in self._refs(self._nodes[index])]
        return [ref._replace(key=f"{boundary.ref.key}:{ref.key}", copied=True, link=None) for ref in refs]


def _ref(line: PlacedLine, uuid: str, *, answer: bool = False) -> Ref:
    return Ref(uuid, _at_ms(line.row), (line.place,), line.size_bytes, answer)


def _at_ms(row: JSONObject) -> int:
    return milliseconds(row.get("timestamp"))


def _result_of(block: JSONObject) -> str | None:
    return str(block.get("tool_use_id")) if block.get("type") == "tool_result" else None


def _joined(ref: Ref, line: PlacedLine, uuid: str) -> Ref:
    return ref._replace(
        key=uuid, places=(*ref.places, line.place), size_bytes=ref.size_bytes + line.size_bytes
    )


def _load(file: SessionFile, ref: Ref) -> Entry:
    if ref.answer:
        entry = _answer([as_object(file.row(index).get("message")) for index in ref.places])
        return cut_off(entry) if ref.cut else entry
    row = file.row(ref.places[0])
    content: Any = as_object(row.get("message")).get("content")
    if len(ref.places) == 1:
        if isinstance(content, list):
            content = [block for block in content if isinstance(block, dict) and _result_of(block) is None]
        text, images = text_and_images(content)
        return Entry(Message(Role.USER, content=text, images=images))
    block = content[ref.places[1]]
    text, images = text_and_images(block.get("content"))
    details = as_object(row.get("toolUseResult"))
    failed = block.get("is_error") is True
    exit_code = _exit_code(text) if failed else (0 if "stdout" in details else None)
    duration_ms = details.get("totalDurationMs") or details.get("durationMs") or 0.0
    return Entry(
        result(block.get("tool_use_id"), None, text, images),
        ok=not failed,
        exit_code=exit_code,
        duration_ms=float(duration_ms) if isinstance(duration_ms, int | float) else 0.0,
    )


def _answer(messages: list[JSONObject]) -> Entry:
    blocks: list[JSONObject] = []
    for line in messages:
        content = line.get("content")
        parts = content if isinstance(content, list) else [{"type": "text", "text": content}]
        blocks += [part for part in parts if isinstance(part, dict)]
    message = assistant(
        (str(block.get("text") or "") for block in blocks if block.get("type") == "text"),
        (str(block.get("thinking") or "") for block in blocks if block.get("type") == "thinking"),
        (_call(block) for block in blocks if block.get("type") == "tool_use"),
    )
    last = messages[-1]
    model = last.get("model")
    if model == "<synthetic>":
        return Entry(message)
    used = as_object(last.get("usage"))
    usage = Usage(
        count(used, "input_tokens"),
        count(used, "cache_read_input_tokens"),
        count(used, "cache_creation_input_tokens"),
        count(used, "output_tokens"),
    )
    return Entry(message, as_call(model, usage, last.get("stop_reason")))


def _call(block: JSONObject) -> ToolCall:
    arguments = as_object(block.get("input"))
    raw = as_object(arguments.get("__unparsedToolInput")).get("raw")
    if isinstance(raw, str):
        return ToolCall(
            str(block.get("id")), str(block.get("name")), raw, "the client could not parse the arguments"
        )
    return tool_call(block.get("id"), block.get("name"), arguments)


def _exit_code(text: str) -> int | None:
    head = text[:40].split("\n")[0]
    number = head.removeprefix("Exit code ")
    return int(number) if number != head and number.isdigit() else None
