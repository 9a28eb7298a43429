"""The calls of the gateway, durable before a client has the last byte of an answer.

A recording is a group of calls that belong together: one `hermes record`, or one session of a client. Its
calls are lines of one append-only file; a future of `append` that resolved means the line survives kill -9.
Files of one process lie in a folder that it has locked, so that the next one finds what a killed one left.
`settle.py` turns a file into trajectories of the store, and only then is the file deleted.

A line that cannot be read is left out and named (`Recording.damage`); the others count. Fields of later
versions are left out.

Known secrets and the client's own key are replaced before anything is written. Not promised: an index, or
reading while the process still appends to a file (`rotate` closes it first).
"""

from __future__ import annotations

import base64
import json
import shutil
import zlib
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from enum import StrEnum
from functools import lru_cache
from pathlib import Path
from typing import Any

from hermes.core import JSONObject, content_hash, new_id
from hermes.disk.appendlog import AppendLog, read_lines_at
from hermes.disk.filelock import FileLock
from hermes.disk.files import ensure_dir
from hermes.gateway.wire import Protocol
from hermes.safety.redact import Redactor
from hermes.store.group_commit import GroupCommit

_FASTEST = 1
_PLAIN_BYTES = 1 << 19
_LOCK = "lock"
_SUFFIX = ".jsonl"
_GROUP = b'{"group":'
"""How the lines of a group's facts begin; every other line is a call."""


class CallEnd(StrEnum):
    COMPLETE = "complete"
    CUT = "cut"
    """The provider's stream ended before the answer did."""
    CANCELLED = "cancelled"
    """The client hung up."""
    FAILED = "failed"
    """There is no answer: an error status, or no response at all."""


@dataclass(frozen=True, slots=True)
class Group:
    """Calls that are recorded together."""

    id: str
    """The URL's key, or the client's session."""
    has_identity: bool = True
    """False for calls that nothing but their history tells apart."""
    facts: JSONObject = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class RecordedCall:
    """One call as it went over the wire."""

    id: str
    protocol: Protocol
    started_at_ms: int
    latency_ms: float
    first_byte_ms: float | None
    status: int
    end: CallEnd
    endpoint: str
    """The base URL that was called."""
    provider: str
    """Its name in the model's name: provider/model."""
    headers: Mapping[str, str]
    """Those that say which agent and session it was; never a key."""
    request: bytes = field(default=b"", repr=False)
    """The decoded body."""
    response: bytes = field(default=b"", repr=False)
    answer_protocol: Protocol | None = None
    """The protocol of the response, if the call was translated."""
    texts: Mapping[str, str] = field(default_factory=dict)
    """Hashes of a policy's texts that are in the request, by name."""


@dataclass(frozen=True, slots=True)
class _Entry:
    group: str
    data: JSONObject
    request: bytes = b""
    response: bytes = b""
    client_key: str | None = None
    rotate_to: Path | None = None


_MOST_OPEN_FILES = 64
"""Groups are as many as clients like, and a process opens 1,024 files on most machines."""


class Journal:
    """The recordings of one process. Safe to use from any thread."""

    def __init__(self, folder: Path, secrets: Mapping[str, str]) -> None:
        """`folder` holds the recordings of all processes of this home."""
        self.folder = ensure_dir(folder / new_id())
        self._lock = FileLock(self.folder / _LOCK)
        self._lock.acquire()
        self._logs: dict[str, AppendLog] = {}
        self._redactor = lru_cache(64)(
            lambda key: Redactor({**secrets, **({"CLIENT_KEY": key} if key else {})})
        )
        self._commit: GroupCommit[_Entry] = GroupCommit("hermes-journal", self._flush)

    def append(self, group: str, call: RecordedCall, client_key: str | None = None) -> Future[None]:
        data = asdict(replace(call, headers=dict(call.headers), texts=dict(call.texts)))
        del data["request"], data["response"]
        entry = _Entry(group, {"call": data}, call.request, call.response, client_key)
        return self._commit.submit(entry)

    def note(self, group: Group) -> Future[None]:
        """Facts about the group; later ones are added to earlier ones."""
        return self._commit.submit(_Entry(group.id, {"group": asdict(group)}))

    def rotate(self, group: str) -> Path | None:
        """Closes the group's file, so that it can be settled; later calls begin another."""
        target = self.folder / f"{_file_name(group)}-{new_id()}{_SUFFIX}"
        self._commit.submit(_Entry(group, {}, rotate_to=target)).result()
        return target if target.exists() else None

    def close(self) -> None:
        """Flushes; the folder is removed if everything in it was settled."""
        if self._commit.close():
            for log in self._logs.values():
                log.close()
            if not any(self.folder.glob(f"*{_SUFFIX}")):
                shutil.rmtree(self.folder, ignore_errors=True)
            self._lock.release()

    def _flush(self, batch: list[tuple[_Entry, Future[None]]]) -> None:
        """One flush to disk a file, whatever the number of calls."""
        by_group: dict[str, list[tuple[_Entry, Future[None]]]] = {}
        for entry, future in batch:
            by_group.setdefault(entry.group, []).append((entry, future))
        for group, entries in by_group.items():
            try:
                self._write(group, [entry for entry, _ in entries])
            except Exception as error:  # noqa: BLE001 (it is raised where the calls are awaited)
                for _, future in entries:
                    future.set_exception(error)
            else:
                for _, future in entries:
                    future.set_result(None)

    def _write(self, group: str, entries: list[_Entry]) -> None:
        path = self.folder / f"{_file_name(group)}{_SUFFIX}"
        lines = []
        for entry in entries:
            if entry.rotate_to is None:
                lines.append(self._line(entry))
                continue
            self._append(group, path, lines)
            lines = []
            if log := self._logs.pop(group, None):
                log.close()
            with suppress(FileNotFoundError):
                path.rename(entry.rotate_to)
        self._append(group, path, lines)

    def _append(self, group: str, path: Path, lines: list[str]) -> None:
        if not lines:
            return
        log = self._logs.pop(group) if group in self._logs else AppendLog(path)
        self._logs[group] = log
        log.append(lines)
        while len(self._logs) > _MOST_OPEN_FILES:
            self._logs.pop(next(iter(self._logs))).close()  # the one that rests longest

    def _line(self, entry: _Entry) -> str:
        redact = self._redactor(entry.client_key).text
        data = dict(entry.data)
        for name, content in (("request", entry.request), ("response", entry.response)):
            if content:
                data[name] = _pack(_redacted(content, redact))
        text = json.dumps(data, separators=(",", ":"))
        return redact(text) if "group" in data else text


def _redacted(data: bytes, redact: Callable[[str], str]) -> bytes:
    return redact(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")


def _pack(data: bytes) -> str | list[str]:
    """Text stays text: packing every request would be most of a call's CPU. Long bodies are packed."""
    if len(data) <= _PLAIN_BYTES:
        with suppress(UnicodeDecodeError):
            return data.decode("utf-8")
    return [base64.b64encode(zlib.compress(data, _FASTEST)).decode("ascii")]


def _unpack(packed: str | list[str] | None) -> bytes:
    if isinstance(packed, list):
        return zlib.decompress(base64.b64decode(packed[0]))
    return packed.encode("utf-8") if packed else b""


def _file_name(group: str) -> str:
    return content_hash(group)


@dataclass(frozen=True, slots=True)
class Recording:
    """A closed file of the journal."""

    path: Path
    damage: dict[int, str] = field(default_factory=dict, compare=False)
    """By the numbers of the lines that could not be read: why."""

    def group(self) -> Group:
        """The group with all facts that were noted."""
        merged = Group(self.path.stem)
        for number, (_, line) in enumerate(read_lines_at(self.path), start=1):
            if line.startswith(_GROUP) and isinstance(noted := self._read(number, line), Group):
                merged = replace(noted, facts={**merged.facts, **noted.facts})
        return merged

    def calls(self) -> Iterator[tuple[int, RecordedCall]]:
        """Each call with its offset in the file, in the order in which they ended."""
        for number, (offset, line) in enumerate(read_lines_at(self.path), start=1):
            if not line.startswith(_GROUP) and isinstance(call := self._read(number, line), RecordedCall):
                yield offset, call

    def call_at(self, offset: int) -> RecordedCall:
        with self.path.open("rb") as file:
            file.seek(offset)
            call = _parse_line(file.readline())
        assert isinstance(call, RecordedCall), "its line was read before"
        return call

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)

    def set_aside(self) -> Path:
        """Keeps the file, beside the folders of processes, where nobody settles it again."""
        return self.path.rename(self.path.parent.parent / f"{self.path.name}.damaged")

    def _read(self, number: int, line: bytes) -> RecordedCall | Group | None:
        try:
            return _parse_line(line)
        except _DamagedLineError as error:
            self.damage[number] = str(error)
            return None


class _DamagedLineError(ValueError):
    """The line is neither a call nor a group."""


def _parse_line(line: bytes) -> RecordedCall | Group:
    try:
        data = json.loads(line)
        if "group" in data:
            group = Group(**_known(Group, data["group"]))
            return replace(group, id=str(group.id), facts=dict(group.facts))
        fields = _known(RecordedCall, data["call"])
        answered = fields.pop("answer_protocol", None)
        fields |= {
            "protocol": Protocol(fields["protocol"]),
            "end": CallEnd(fields["end"]),
            "answer_protocol": Protocol(answered) if answered else None,
            "headers": {str(name): str(value) for name, value in fields["headers"].items()},
            "request": _unpack(data.get("request")),
            "response": _unpack(data.get("response")),
        }
        call = RecordedCall(**fields)
        numbers = (call.started_at_ms, call.latency_ms, call.first_byte_ms or 0, call.status)
        if not all(isinstance(number, int | float) for number in numbers):
            raise TypeError("a number has another type")
        for name in (call.id, call.endpoint, call.provider):
            name.encode()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, zlib.error) as error:
        raise _DamagedLineError(f"{type(error).__name__}: {str(error)[:200]}") from error
    return call


def _known(kind: type[Group | RecordedCall], data: JSONObject) -> dict[str, Any]:
    return {item.name: data[item.name] for item in fields(kind) if item.name in data}


def abandoned(folder: Path) -> Iterator[tuple[Recording, ...]]:
    """The recordings of each process that ended without settling them. They are locked until the next one is
    taken; what was settled by then is deleted."""
    for process_folder in sorted(path for path in folder.glob("*") if path.is_dir()):
        lock = FileLock(process_folder / _LOCK)
        try:
            if not lock.acquire(blocking=False):
                continue
        except OSError:
            continue
        try:
            yield tuple(Recording(path) for path in sorted(process_folder.glob(f"*{_SUFFIX}"), key=_age))
            if not any(process_folder.glob(f"*{_SUFFIX}")):
                shutil.rmtree(process_folder, ignore_errors=True)
        finally:
            lock.release()


def _age(path: Path) -> tuple[bool, str]:
    """Closed files of a group, which have a time in their names, before the one that was still open."""
    return "-" not in path.stem, path.name
