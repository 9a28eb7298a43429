"""Codex: a file a thread, in order; the items of one response are one answer, and its usage follows it.

A line of type `compacted` has the history that replaced the one before it. Sub-agents have files of their
own, which name their thread's parent. The tools are not in the file, and thinking only as far as it is not
encrypted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from hermes.core import Boundary, JSONObject, Message, Outcome, Relation, Role, StopReason, ToolCall, Usage
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

AGENT = "codex"
_CALLS = ("function_call", "custom_tool_call", "local_shell_call")
_OUTPUTS = ("function_call_output", "custom_tool_call_output")
_ITEMS = ("message", "reasoning", *_CALLS, *_OUTPUTS)
_EXIT_CODE = re.compile(r"(?:exited with code |\"exit_code\":\s*|^Exit code: )(-?\d{1,10})", re.MULTILINE)
_ROLES = {"user": Role.USER, "developer": Role.SYSTEM, "system": Role.SYSTEM}


def read(root: Path, path: Path, notes: Notes) -> Iterator[Session]:
    file = SessionFile(root, path)
    try:
        thread = _Thread(path.stem)
        for line in file.rows(notes):
            thread.add(line, notes)
        yield Session(
            id=thread.id,
            agent=AGENT,
            version=thread.version,
            file=str(path),
            paths=thread.finish(),
            load=lambda ref: _load(file, thread, ref),
            line=lambda ref: file.number(ref.places[0]),
            cwd=thread.cwd,
            updated_ms=file.updated_ms,
        )
    finally:
        file.close()


class _Thread:
    def __init__(self, name: str) -> None:
        self.id = name
        self.version: str | None = None
        self.cwd: str | None = None
        self.models: dict[int, str] = {}
        """By the first place of an answer."""
        self._paths: list[SessionPath] = []
        self._refs: list[Ref] = []
        self._relation: Relation | None = None
        self._origins: tuple[str, ...] = ()
        self._meta: int | None = None
        self._instructed = False
        self._provider = self._model = ""
        self._open: int | None = None
        """Where the answer is that further items may belong to."""
        self._sampled: object = None
        self._without_usage: int | None = None
        self._spawns: set[str] = set()
        self._outcome: Outcome | None = None

    def add(self, line: PlacedLine, notes: Notes) -> None:
        row, kind = line.row, line.row.get("type")
        payload = as_object(row.get("payload"))
        if kind == "session_meta" or (kind is None and "instructions" in row):
            self._begin(line, payload or row)
        elif kind == "response_item" or kind in _ITEMS:
            item = payload or row
            if item.get("type") not in _ITEMS or as_object(row.get("metadata")).get("compaction_output"):
                notes.ignored[str(item.get("type"))] += 1
            else:
                self._item(line, item, as_object(row.get("metadata")).get("sampled_through_sequence"))
        elif kind == "turn_context":
            self._model = str(payload.get("model") or self._model)
        elif kind == "compacted":
            self._compacted(line, payload)
        elif kind == "token_usage_record" or payload.get("type") == "token_count":
            self._usage(line)
        elif payload.get("type") == "turn_aborted":
            self._outcome = Outcome(StopReason.CANCELLED, Boundary.USER)
        else:
            notes.ignored[str(kind)] += 1

    def finish(self) -> list[SessionPath]:
        return [*self._paths, SessionPath(self._refs, self._relation, self._origins, self._outcome)]

    def _begin(self, line: PlacedLine, meta: JSONObject) -> None:
        if self._meta is not None:
            return  # of the thread that this one was forked from
        self._meta = line.place
        self.id = str(meta.get("id") or self.id)
        self.version = str(meta["cli_version"]) if "cli_version" in meta else None
        self.cwd = str(meta["cwd"]) if "cwd" in meta else None
        self._provider = str(meta.get("model_provider") or "")
        source = as_object(as_object(as_object(meta.get("source")).get("subagent")).get("thread_spawn"))
        parent = meta.get("parent_thread_id") or source.get("parent_thread_id")
        if parent:
            self._relation, self._origins = Relation.DELEGATE, (self.id, str(parent))

    def _item(self, line: PlacedLine, item: JSONObject, sampled: object) -> None:
        key = str(item.get("id") or f"{self.id}:{line.place}")
        if not self._instructed:
            self._instruct(line, key)
        self._outcome = None
        kind = item["type"]
        if kind in _OUTPUTS or (kind == "message" and item.get("role") != "assistant"):
            self._open = self._open if sampled is not None and sampled == self._sampled else None
            link = self._spawned(item) if kind in _OUTPUTS else None
            self._refs.append(_ref(line, key, link=link))
            return
        if kind == "function_call" and item.get("name") == "spawn_agent":
            self._spawns.add(str(item.get("call_id")))
        if self._open is not None and sampled == self._sampled:
            ref = self._refs[self._open]
            places = (*ref.places, line.place)
            size_bytes = ref.size_bytes + line.size_bytes
            self._refs[self._open] = ref._replace(key=key, places=places, size_bytes=size_bytes)
            return
        self._open = self._without_usage = len(self._refs)
        self._sampled = sampled
        self.models[line.place] = "/".join(name for name in (self._provider, self._model) if name)
        self._refs.append(_ref(line, key, answer=True))

    def _instruct(self, line: PlacedLine, key: str) -> None:
        """The system prompt, which forks share with the thread that they are from."""
        self._instructed = True
        if self._meta is not None:
            ref = Ref(f"{key}:instructions", milliseconds(line.row.get("timestamp")), (self._meta,), 0)
            self._refs.append(ref)

    def _spawned(self, item: JSONObject) -> str | None:
        if str(item.get("call_id")) not in self._spawns or not isinstance(item.get("output"), str):
            return None
        try:
            return str(json.loads(item["output"])["agent_id"])
        except (ValueError, KeyError, TypeError):
            return None

    def _usage(self, line: PlacedLine) -> None:
        """It is read with the answer that it is of; where the same is written twice, the first counts."""
        if line.row.get("type") == "token_usage_record":
            self._open = None
        payload = as_object(line.row.get("payload"))
        if self._without_usage is not None and (payload.get("usage") or payload.get("info")):
            ref = self._refs[self._without_usage]
            self._refs[self._without_usage] = ref._replace(places=(*ref.places, line.place))
            self._without_usage = None

    def _compacted(self, line: PlacedLine, payload: JSONObject) -> None:
        cut = COMPACTED if self._refs and not self._refs[-1].answer else None
        self._paths.append(SessionPath(self._refs, self._relation, self._origins, self._outcome or cut))
        self._relation, self._origins = Relation.CONTINUED, ()
        self._open = self._without_usage = self._outcome = None
        key, at_ms = f"{self.id}:{line.place}", milliseconds(line.row.get("timestamp"))
        self._refs = []
        self._instruct(line, key)
        items = payload.get("replacement_history")
        replaced = items if isinstance(items, list) else [None]
        for index, item in enumerate(replaced):
            if item is None or as_object(item).get("type") in _ITEMS:
                size_bytes = line.size_bytes // len(replaced)
                self._refs.append(Ref(f"{key}:{index}", at_ms, (line.place, index), size_bytes, copied=True))


def _ref(line: PlacedLine, key: str, *, answer: bool = False, link: str | None = None) -> Ref:
    return Ref(
        key, milliseconds(line.row.get("timestamp")), (line.place,), line.size_bytes, answer, link=link
    )


def _load(file: SessionFile, thread: _Thread, ref: Ref) -> Entry:
    row = file.row(ref.places[0])
    payload = as_object(row.get("payload")) or row
    if row.get("type") == "compacted":
        history = payload.get("replacement_history")
        if not isinstance(history, list):
            return Entry(Message.user(str(payload.get("message") or "")))
        return _entry([history[ref.places[1]]])
    if ref.key.endswith(":instructions"):
        text = as_object(payload.get("base_instructions")).get("text") or payload.get("instructions")
        return Entry(Message.system(str(text or "")))
    if not ref.answer:
        return _entry([payload])
    rows = [row, *(file.row(index) for index in ref.places[1:])]
    items = [as_object(line.get("payload")) or line for line in rows]
    used: JSONObject = {}
    for item in items:
        used = (
            as_object(item.get("usage"))
            or as_object(as_object(item.get("info")).get("last_token_usage"))
            or used
        )
    cached, written = count(used, "cached_input_tokens"), count(used, "cache_write_input_tokens")
    reasoning = count(used, "reasoning_output_tokens")
    usage = Usage(
        max(0, count(used, "input_tokens") - cached - written),
        cached,
        written,
        max(0, count(used, "output_tokens") - reasoning),
        reasoning,
    )
    message = _entry(items).message
    reason = "tool_calls" if message.tool_calls else "stop"
    return Entry(message, as_call(thread.models.get(ref.places[0]), usage, reason))


def _entry(items: list[JSONObject]) -> Entry:
    """A message, or the items of one response."""
    item = items[0]
    kind, role = item.get("type"), item.get("role")
    if kind in _OUTPUTS:
        output = item.get("output")
        content = as_object(output).get("content", output)
        text, images = text_and_images(content)
        match = _EXIT_CODE.search(text[:500])
        exit_code = int(match[1]) if match else None
        ok = as_object(output).get("success") is not False and not exit_code
        return Entry(result(item.get("call_id"), None, text, images), ok=ok, exit_code=exit_code)
    if kind == "message" and role != "assistant":
        if role not in _ROLES:
            raise BadRowError(f"the role {role!r} is unknown")
        text, images = text_and_images(item.get("content"))
        return Entry(Message(_ROLES[str(role)], text, images=images))
    return Entry(
        assistant(
            (text_and_images(part.get("content"))[0] for part in items if part.get("type") == "message"),
            (_thinking(part) for part in items if part.get("type") == "reasoning"),
            (_call(part) for part in items if part.get("type") in _CALLS),
        )
    )


def _thinking(item: JSONObject) -> str:
    return text_and_images(item.get("content"))[0] or text_and_images(item.get("summary"))[0]


def _call(item: JSONObject) -> ToolCall:
    if item["type"] == "custom_tool_call":
        return tool_call(item.get("call_id"), item.get("name"), {"input": item.get("input")})
    if item["type"] == "local_shell_call":
        return tool_call(item.get("call_id") or item.get("id"), "local_shell", as_object(item.get("action")))
    return tool_call(item.get("call_id"), item.get("name"), item.get("arguments") or "{}")
