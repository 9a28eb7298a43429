"""Sessions into the store: each path once, whole or not at all, and of a session that grew only what is new.

The `config` of a trajectory has the keys of the entries that it added, shortened; a path is compared with
them. It goes on where the stored ones end, in a trajectory that has what was before as input
and names its parent; so forks, copies of a session in another file and a second import double nothing.
What no
model has answered yet, and an answer that may still get more calls, are left for the next import.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import NamedTuple

from hermes.core import (
    Header,
    JSONObject,
    Outcome,
    Relation,
    Role,
    Source,
    Step,
    StepKind,
    ToolErrorKind,
    ToolResult,
    Trajectory,
    clock,
)
from hermes.data.example import ending
from hermes.data.formats.facts import content_id
from hermes.data.importing import EarlierMessages, Imported, ImportProblem, NumberedRow, Storing
from hermes.data.lines import Line
from hermes.data.sessions.base import Entry, Notes, Ref, Session, SessionPath
from hermes.store import Filter, Reader, Record, sqlite

MAX_TRAJECTORY_BYTES = 16 << 20
"""A longer path becomes several trajectories; those after the first have no history."""
_UNREADABLE = (AttributeError, IndexError, KeyError, TypeError, ValueError)
_SETTLED_BYTES = 16 << 20
_REST_MS = 600_000
"""An unfinished answer in a session that has not changed for this long will not be finished."""


class _Loaded(NamedTuple):
    ref: Ref
    entry: Entry


@dataclass
class SessionImport:
    """One import of any number of files: what it stored, and who started whom."""

    reader: Reader
    storing: Storing
    done: Imported
    run_id: str | None = None
    _own: dict[str, list[str]] = field(default_factory=dict)
    """The entries of the trajectories of this import, which the reader may not see yet."""
    _links: dict[str, str] = field(default_factory=dict)
    _known: set[str] = field(default_factory=set)
    _waiting_bytes: int = 0
    _resting_ms: int = field(default_factory=lambda: clock.now_ms() - _REST_MS)

    def add(self, session: Session) -> None:
        if self.reader.count(Filter(session_id=session.id, source=Source.RECORD.value)):
            self._count_known(session.id)  # the gateway saw its calls, exactly
            return
        previous: str | None = None
        for path in session.paths:
            last = self._add_path(session, path, previous)
            if last is not None:
                previous = last
                if path.relation is not Relation.DELEGATE:
                    self._links[session.id] = last

    def report(self, file: str, notes: Notes) -> None:
        self.done.problems += [ImportProblem(file, line, why) for line, why in notes.problems]
        self.done.ignored += notes.ignored
        notes.problems.clear()
        notes.ignored.clear()

    def _add_path(self, session: Session, path: SessionPath, previous: str | None) -> str | None:
        """Stores what is new of the path; the id of the trajectory that holds its end."""
        refs = path.refs
        keys = [_short(ref.key) for ref in refs]
        parent = next((self._links[name] for name in path.origins if name in self._links), None)
        relation = path.relation
        if relation is not None and not path.origins:
            parent = previous
        position = 0
        while position < len(refs):
            trajectory_id = _id_of(session, refs[position])
            stored = self._entries(trajectory_id)
            if stored is None:
                end = self._store(session, path, position, trajectory_id, parent, relation)
                if end == position:
                    break
                shared = end - position
            else:
                shared = _common(stored, keys[position:])
            at = position + shared
            self._remember(refs[position:at], trajectory_id)
            forked = stored is not None and shared < len(stored)
            answered_again = forked and at < len(refs) and refs[at].answer
            relation = Relation.RETRY if answered_again else Relation.CONTINUED
            position, parent = at, trajectory_id
        return parent if position else None

    def _remember(self, refs: Iterable[Ref], trajectory_id: str) -> None:
        for ref in refs:
            if ref.link is not None:
                self._links.setdefault(ref.link, trajectory_id)

    def _entries(self, trajectory_id: str) -> list[str] | None:
        if trajectory_id in self._own:
            return self._own[trajectory_id]
        if not self.reader.exists(trajectory_id):
            return None
        self._count_known(trajectory_id)
        entries = self.reader.header(trajectory_id).config.get("entries")
        return [str(key) for key in entries] if isinstance(entries, list) and entries else ["?"]

    def _count_known(self, name: str) -> None:
        self._known.add(name)
        self.done.known = len(self._known)

    def _store(
        self,
        session: Session,
        path: SessionPath,
        start: int,
        trajectory_id: str,
        parent: str | None,
        relation: Relation | None,
    ) -> int:
        """Stores the path's entries from `start` as one trajectory; the position after the last of them."""
        end = start + _fitting(path.refs[start:])
        new = self._load(session, path.refs[start:end])
        outcome = path.outcome if end == len(path.refs) else None
        if outcome is None:
            new = _finished(new, at_rest=end < len(path.refs) or session.updated_ms < self._resting_ms)
        if not any(loaded.entry.call is not None and not loaded.ref.copied for loaded in new):
            return start
        end = path.refs.index(new[-1].ref, start) + 1
        before = path.refs[:start]
        if sum(ref.size_bytes for ref in before) > MAX_TRAJECTORY_BYTES:
            before = ()
        history = self._load(session, before)
        keys = [_short(ref.key) for ref in path.refs[start:end]]
        header = _header(session, new, trajectory_id, self.run_id, keys)
        header = replace(header, parent_id=parent, relation=relation)
        self._own[trajectory_id] = keys
        record = _record(header, history, new, outcome)
        line = Line(session.line(new[0].ref), None, None)
        self.storing.add(NumberedRow(session.file, line), record)
        self._waiting_bytes += sum(loaded.ref.size_bytes for loaded in (*history, *new))
        if self._waiting_bytes > _SETTLED_BYTES:
            self.storing.settle()
            self._waiting_bytes = 0
        return end

    def _load(self, session: Session, refs: Sequence[Ref]) -> list[_Loaded]:
        loaded = []
        unreadable: tuple[type[Exception], ...] = (*_UNREADABLE, *sqlite.errors())
        for ref in refs:
            try:
                loaded.append(_Loaded(ref, session.load(ref)))
            except unreadable as error:
                reason = f"not a message of {session.agent}: {type(error).__name__} {error}"
                problem = ImportProblem(session.file, session.line(ref), reason)
                if problem not in self.done.problems[-len(refs) :]:
                    self.done.problems.append(problem)
        return loaded


def _short(key: str) -> str:
    return hashlib.blake2b(key.encode("utf-8", "replace"), digest_size=5).hexdigest()


def _id_of(session: Session, ref: Ref) -> str:
    return content_id(None, ref.at_ms, [session.agent, ref.key])


def _common(stored: Sequence[str], keys: Sequence[str]) -> int:
    """How many entries are the same; at least the first, which made the id."""
    pairs = zip(stored, keys, strict=False)
    return max(
        1, next((index for index, (old, new) in enumerate(pairs) if old != new), min(len(stored), len(keys)))
    )


def _fitting(refs: Sequence[Ref]) -> int:
    """How many entries one trajectory holds."""
    size_bytes = 0
    for index, ref in enumerate(refs):
        size_bytes += ref.size_bytes
        if size_bytes > MAX_TRAJECTORY_BYTES and index:
            return index
    return len(refs)


def _finished(new: list[_Loaded], *, at_rest: bool) -> list[_Loaded]:
    """Without the questions at the end, and without a last answer of which more may come."""
    last = max((index for index, loaded in enumerate(new) if loaded.entry.call is not None), default=0)
    if new and not at_rest and _is_open(new[last].entry):
        new = new[:last]
    while new and not _ends(new[-1].entry):
        new = new[:-1]
    return new


def _is_open(entry: Entry) -> bool:
    calls = entry.message.tool_calls
    return entry.call is not None and (bool(calls) or "tool" in entry.call.finish_reason.lower())


def _ends(entry: Entry) -> bool:
    """Whether a trajectory may end with it: an answer that says or calls something, or a result."""
    message = entry.message
    if message.role is Role.ASSISTANT:
        return entry.call is not None and bool(message.content or message.tool_calls)
    return message.role is Role.TOOL


def _header(
    session: Session, new: Sequence[_Loaded], trajectory_id: str, run_id: str | None, keys: list[str]
) -> Header:
    facts: JSONObject = {"agent": session.agent}
    if session.version:
        facts["agent_version"] = session.version
    config: JSONObject = {"file": session.file, "entries": list(keys)}
    if session.cwd:
        config["cwd"] = session.cwd
    return Header(
        id=trajectory_id,
        source=Source.IMPORT,
        model=next(loaded.entry.call.model for loaded in new if loaded.entry.call),
        created_at_ms=new[0].ref.at_ms,
        session_id=session.id,
        run_id=run_id,
        config=config,
        metadata=facts,
    )


def _record(
    header: Header, history: Sequence[_Loaded], new: Sequence[_Loaded], outcome: Outcome | None
) -> Record:
    items = [(loaded, True) for loaded in history]
    items += [(loaded, loaded.ref.copied) for loaded in new]
    names: dict[str | None, str] = {}
    order: dict[str | None, int] = {}
    for loaded, _ in items:
        for call in loaded.entry.message.tool_calls:
            names[call.id], order[call.id] = call.name, len(order)
    steps: list[Step] = []
    for is_tool, group in groupby(items, lambda item: item[0].entry.message.role is Role.TOOL):
        members = list(group)
        if is_tool:  # parallel results, in the order of their calls
            members.sort(key=lambda item: order.get(item[0].entry.message.tool_call_id, len(order)))
        steps += [
            _step(len(steps) + index, loaded, names, is_input=is_input)
            for index, (loaded, is_input) in enumerate(members)
        ]
    messages = tuple(step.message for step in steps)
    offered = {
        at: loaded.entry.tools for at, (loaded, _) in enumerate(items) if loaded.entry.tools is not None
    }
    names_of = dict.fromkeys(str(tool["name"]) for tools in offered.values() for tool in tools)
    header = replace(header, tools=tuple(names_of))
    trajectory = Trajectory(header, tuple(steps), outcome or ending(messages))
    return Record(trajectory, EarlierMessages(trajectory, offered))


def _step(index: int, loaded: _Loaded, names: Mapping[str | None, str], *, is_input: bool) -> Step:
    (ref, entry), message = loaded, loaded.entry.message
    if message.role is Role.TOOL and not message.name:
        message = replace(message, name=names.get(message.tool_call_id))
    if is_input or (message.role is not Role.TOOL and entry.call is None):
        return Step(index, StepKind.INPUT, message, ref.at_ms)
    if message.role is not Role.TOOL:
        return Step(index, StepKind.MODEL, message, ref.at_ms, call=entry.call)
    result = ToolResult(
        message.tool_call_id or "",
        message.name or "",
        entry.ok,
        entry.duration_ms,
        None if entry.ok else ToolErrorKind.FAILED,
        entry.exit_code,
        len(message.content),
    )
    return Step(index, StepKind.TOOL, message, ref.at_ms, result=result)
