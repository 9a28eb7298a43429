"""Reads a file of tasks: every valid row with a stable key, every bad row with its line and reason.

A row's key does not depend on its position: it is the row's `id`, or the hash of its content and the number
of its occurrence, if the content is repeated. So a dataset can be reordered or extended and each row keeps
its key. Bad rows are returned with the valid ones, are never skipped silently, and never change another row's
key.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hermes.core import JSON, JSONObject, Message, Role, canonical_json, content_hash
from hermes.data.lines import Line, read_lines, read_parquet
from hermes.errors import UsageError

_ROLES = {
    "system": Role.SYSTEM,
    "user": Role.USER,
    "human": Role.USER,
    "assistant": Role.ASSISTANT,
    "gpt": Role.ASSISTANT,
}
_SURROGATE = re.compile("[\ud800-\udfff]")
_FIELDS = ("image", "docker_image", "cwd", "files", "expected", "reward", "metadata")


@dataclass(frozen=True, slots=True)
class TaskRow:
    """One task."""

    key: str
    prompts: tuple[str, ...]
    """User turns, in order; usually one."""
    history: tuple[Message, ...] = ()
    """Messages that come before the first prompt (from `messages`)."""
    image: str | None = None
    """Container image for this task's sandbox."""
    folder: str | None = None
    """On this machine: of the task that a trial is opened for (batch.trial)."""
    cwd: str | None = None
    """Working directory of the tools, in the workspace and created if missing; absolute: one of the image."""
    files: JSONObject = field(default_factory=dict)
    """Path in the workspace → text that is written there before the task starts."""
    expected: JSON = None
    reward: str | None = None
    """Name of the reward function for this row."""
    metadata: JSONObject = field(default_factory=dict)
    """Copied to the output; contains every column that Hermes does not interpret."""

    def to_json(self) -> JSONObject:
        return {**asdict(self), "history": [message.to_json() for message in self.history]}

    @classmethod
    def from_json(cls, data: JSONObject) -> TaskRow:
        history = tuple(Message.from_json(message) for message in data["history"])
        return cls(**{**data, "prompts": tuple(data["prompts"]), "history": history})


@dataclass(frozen=True, slots=True)
class BadRow:
    line: int
    """Its line, or which it is of the tasks that are left out."""
    reason: str
    task: str | None = None
    """The name of a task that is a folder."""

    def to_json(self) -> JSONObject:
        return {name: value for name, value in asdict(self).items() if value is not None}

    def __str__(self) -> str:
        place = f"bad row on line {self.line}" if self.task is None else f"left out: {self.task}"
        return f"{place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Dataset:
    rows: tuple[TaskRow, ...]
    bad: tuple[BadRow, ...]
    digest: str
    """Hash of the rows' contents, independent of their order."""


def read_dataset(source: str, *, max_rows: int | None = None, prompt_field: str = "prompt") -> Dataset:
    """`source` is a .jsonl, .json, .csv or .parquet file, or the name of a hub dataset."""
    occurrences: Counter[str] = Counter()
    lines: dict[str, int] = {}
    rows: list[TaskRow] = []
    digests: list[str] = []
    bad: list[BadRow] = []
    for line, record in _records(source):
        if max_rows is not None and len(rows) >= max_rows:
            break
        try:
            digest = _digest(record)
            row = _row(record, prompt_field, _key(record, digest, occurrences))
            if row.key in lines:
                raise ValueError(f"the id {row.key!r} is already used on line {lines[row.key]}")
        except ValueError as error:
            bad.append(BadRow(line, str(error)))
            continue
        lines[row.key] = line
        rows.append(row)
        digests.append(digest)
    if not rows:
        problem = f"; the first problem: line {bad[0].line}: {bad[0].reason}" if bad else ""
        raise UsageError(
            f"{source} has no usable row{problem}", f"each row needs a '{prompt_field}' or 'messages'"
        )
    return Dataset(tuple(rows), tuple(bad), content_hash("\n".join(sorted(digests))))


def _records(source: str) -> Iterator[tuple[int, JSON]]:
    """(line number, record or the ValueError raised while reading it)."""
    path = Path(source)
    readers = {".jsonl": _jsonl, ".ndjson": _jsonl, ".json": _json, ".csv": _csv, ".parquet": _parquet}
    reader = readers.get(path.suffix.lower())
    if reader is not None:
        if not path.is_file():
            raise UsageError(f"there is no dataset file {path}", "check --dataset-file")
        return reader(path)
    if path.exists():
        raise UsageError(f"{path}: unknown kind of dataset", f"one of: {', '.join(readers)}")
    return _hub(source)


def _jsonl(path: Path) -> Iterator[tuple[int, JSON]]:
    return _numbered(read_lines(path))


def _numbered(lines: Iterator[Line]) -> Iterator[tuple[int, JSON]]:
    for line in lines:
        yield line.number, ValueError(line.problem) if line.row is None else line.row


def _json(path: Path) -> Iterator[tuple[int, JSON]]:
    try:
        data = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not JSON: {error}", "a .json dataset is one array of rows") from error
    if not isinstance(data, list):
        raise UsageError(f"{path} holds no array of rows", "use .jsonl for one object a line")
    yield from enumerate(data, 1)


def _csv(path: Path) -> Iterator[tuple[int, JSON]]:
    number = 1
    try:
        reader = csv.DictReader(io.StringIO(path.read_text("utf-8-sig"), newline=""))
        for record in reader:
            number = reader.line_num
            if None in record:
                yield number, ValueError("more columns than the heading has")
            else:
                yield number, {name: value for name, value in record.items() if value not in (None, "")}
    except (UnicodeDecodeError, csv.Error) as error:
        raise UsageError(f"{path} is no CSV after line {number}: {error}", "write it as UTF-8") from error


def _parquet(path: Path) -> Iterator[tuple[int, JSON]]:
    for number, record in _numbered(read_parquet(path)):
        if isinstance(record, dict):
            record = {name: value for name, value in record.items() if value is not None}
        yield number, record


def _hub(name: str) -> Iterator[tuple[int, JSON]]:
    try:
        import datasets  # type: ignore[import-untyped]
    except ImportError as error:
        raise UsageError(
            f"'{name}' is no file, and reading hub datasets needs the package 'datasets'",
            "pip install datasets, or give a .jsonl, .json, .csv or .parquet file",
        ) from error
    repository, _, split = name.partition(":")
    try:
        rows = datasets.load_dataset(repository, split=split or "train", streaming=True)
    except (OSError, ValueError) as error:
        raise UsageError(
            f"cannot load the hub dataset '{name}': {error}", "check the name and the network"
        ) from error
    yield from enumerate(rows, 1)


def _digest(record: JSON) -> str:
    """Hash of the row; ValueError if the record is not a row."""
    if isinstance(record, ValueError):
        raise record
    if not isinstance(record, dict):
        raise ValueError(f"a row is an object, not {type(record).__name__}")
    try:
        return content_hash(canonical_json(record))
    except (ValueError, TypeError) as error:
        raise ValueError(f"the row holds something JSON cannot: {error}") from error


def _row(record: JSONObject, prompt_field: str, key: str) -> TaskRow:
    prompts, history = _turns(record, prompt_field)
    metadata = {
        name: value
        for name, value in record.items()
        if name not in (*_FIELDS, prompt_field, "messages", "id")
    }
    row = TaskRow(
        key=key,
        prompts=prompts,
        history=history,
        image=_typed_field(record, "image", str) or _typed_field(record, "docker_image", str),
        cwd=_typed_field(record, "cwd", str),
        files=_typed_field(record, "files", dict) or {},
        expected=record.get("expected"),
        reward=_typed_field(record, "reward", str),
        metadata={**metadata, **(_typed_field(record, "metadata", dict) or {})},
    )
    _check_paths(row)
    return row


def _check_paths(row: TaskRow) -> None:
    if any(not isinstance(text, str) for text in row.files.values()):
        raise ValueError("'files' maps paths to text")
    for path in row.files:
        if not _inside(path):
            raise ValueError(f"'files': {path!r} is not a path inside the workspace")
    if row.cwd is not None and not _inside(row.cwd) and not (row.image and row.cwd.startswith("/")):
        raise ValueError(
            f"'cwd': {row.cwd!r} is not a directory of the workspace (absolute: only with 'image')"
        )


def _inside(path: str) -> bool:
    usable = bool(path) and "\0" not in path and not _SURROGATE.search(path)
    return usable and not path.startswith("/") and ".." not in path.split("/")


def _key(record: JSONObject, digest: str, occurrences: Counter[str]) -> str:
    if record.get("id") is not None:
        if not isinstance(record["id"], str | int) or isinstance(record["id"], bool):
            raise ValueError("'id' is text or a whole number")
        key = str(record["id"])
        if _SURROGATE.search(key):
            raise ValueError("'id' holds half of a surrogate pair")
        return key
    occurrences[digest] += 1
    return f"{digest[:16]}.{occurrences[digest]}"


def _turns(record: JSONObject, prompt_field: str) -> tuple[tuple[str, ...], tuple[Message, ...]]:
    if prompt_field in record:
        prompt = record[prompt_field]
        prompts = [prompt] if isinstance(prompt, str) else prompt
        if (
            not isinstance(prompts, list)
            or not prompts
            or not all(isinstance(p, str) and p.strip() for p in prompts)
        ):
            raise ValueError(f"'{prompt_field}' is text, or a list of texts, and not empty")
        return tuple(prompts), ()
    if "messages" not in record:
        raise ValueError(f"neither '{prompt_field}' nor 'messages'")
    messages = (
        [_message(message) for message in record["messages"]] if isinstance(record["messages"], list) else []
    )
    if not messages or messages[-1].role is not Role.USER:
        raise ValueError("'messages' is a list that ends with a user message")
    return (messages[-1].content,), tuple(messages[:-1])


def _message(data: JSON) -> Message:
    if not isinstance(data, dict):
        raise ValueError("a message is an object with role and content")
    role = _ROLES.get(str(data.get("role", data.get("from"))))
    content = data.get("content", data.get("value"))
    if role is None or not isinstance(content, str):
        raise ValueError("a message has the role system, user or assistant, and text content")
    return Message(role, content)


def _typed_field(record: JSONObject, name: str, kind: type) -> JSON:
    value = record.get(name)
    if value is not None and not isinstance(value, kind):
        raise ValueError(f"'{name}' must be {'an object' if kind is dict else 'text'}")
    return value
