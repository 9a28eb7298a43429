"""Conversations into the store: ShareGPT, messages, ATIF, session traces, hermes-agent runs, whole records.

A file may be JSONL, a JSON document (or a list of them), Parquet, or a folder of such files. Every row that
can be read is stored; every one that cannot is reported with its file and line. A row has the same id every
time it is read, so importing a file again adds nothing. A row is stored whole or not at all. Of an imported
model call the store has what the row has, which is mostly the model's name; whole records of another store
are restored exactly.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, NamedTuple, Self

from hermes.core import JSONObject, Reward, Source, StepKind, StopReason, Trajectory
from hermes.data.example import Example
from hermes.data.formats import record, sts
from hermes.data.formats.base import BadRowError, Format
from hermes.data.formats.facts import content_id
from hermes.data.formats.registry import FORMATS, get_format
from hermes.data.lines import MAX_LINE_BYTES, Line, read_lines, read_parquet
from hermes.data.sessions.base import session_client
from hermes.errors import UsageError
from hermes.store import ModelInput, Reader, Record, RefusedError, Writer

_READABLE = (".jsonl", ".ndjson", ".json", ".parquet")
_MERGED = "trajectories.jsonl"
_ROWS_AT_ONCE = 512
_JSON_COLUMNS = (
    *("metadata", "agent", "steps", "final_metrics", "extra"),
    *(column.name for column in record.FORMAT.columns if column.kind == "json"),
)
_HARBOR_TRAJECTORY = "agent/trajectory.json"
_HARBOR_TIMEOUT = "AgentTimeoutError"
"""The agent was too slow: Harbor's verifier scores what it has left all the same."""
_NOT_DATA = ("statistics.json", "checkpoint.json", "run.json", "dataset_info.json", "removed.jsonl")


class ImportProblem(NamedTuple):
    file: str
    line: int
    """From 1; of a JSON document, the position in its list; of a database, the row. 0: the whole file."""
    why: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}: {self.why}" if self.line else f"{self.file}: {self.why}"


class NumberedRow(NamedTuple):
    file: str
    line: Line


@dataclass
class Imported:
    rows: int = 0
    """Stored now."""
    known: int = 0
    """In the store before."""
    problems: list[ImportProblem] = field(default_factory=list)
    ignored: Counter[str] = field(default_factory=Counter)
    """Lines of sessions that are no messages, by their type."""


def import_files(
    paths: list[Path], reader: Reader, writer: Writer, *, form: str | None = None, run_id: str | None = None
) -> Imported:
    """Stores every readable row of the files; `form` None: the format of each row is detected."""
    chosen = get_format(form) if form else None
    if chosen is not None and chosen.read is None:
        readable = ", ".join(name for name, candidate in FORMATS.items() if candidate.read)
        raise UsageError(f"rows of '{form}' cannot be turned back into trajectories", f"one of: {readable}")
    done = Imported()
    imported_ids: set[str] = set()
    occurrences: Counter[tuple[str, str]] = Counter()
    with Storing(writer, done) as storing:
        for file, line in rows_of(paths):
            try:
                example = read_row(line, chosen, run_id)
                if example.id in imported_ids and example.record is not None:
                    storing.settle()  # to compare the two
                if example.record is not None and _is_restored(reader, example.record):
                    done.known += 1
                    continue
            except BadRowError as error:
                done.problems.append(ImportProblem(file, line.number, str(error)))
                continue
            if example.record is None:
                before = occurrences[file, example.id]
                occurrences[file, example.id] += 1
                if before and example.id not in _stated_ids(line):
                    example = _with_new_id(example, [example.id, before])  # two samples with equal content
                if reader.exists(example.id):
                    example = _avoid_cut_trajectory(reader, example)
                    is_stored = reader.exists(example.id)
                else:
                    is_stored = example.id in imported_ids
                if is_stored:
                    done.known += 1
                    continue
            imported_ids.add(example.id)
            storing.add(NumberedRow(file, line), example.record or _record(example))
    return done


class Storing:
    """Stores records, many in one commit: a file is on disk when the next one begins, the last when the block
    ends."""

    def __init__(self, writer: Writer, done: Imported) -> None:
        self._writer = writer
        self._done = done
        self._pending: list[tuple[NumberedRow, Future[None]]] = []

    def add(self, row: NumberedRow, new: Record) -> None:
        if len(self._pending) >= _ROWS_AT_ONCE or (self._pending and self._pending[-1][0].file != row.file):
            self.settle()
        self._pending.append((row, self._writer.restore(new)))

    def settle(self) -> None:
        """Waits until everything is on disk; what the store refuses is a problem of its row."""
        pending, self._pending = self._pending, []
        for (file, line), stored in pending:
            try:
                stored.result()
                self._done.rows += 1
            except RefusedError as error:
                self._done.problems.append(ImportProblem(file, line.number, str(error)))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.settle()


def _is_restored(reader: Reader, restored: Record) -> bool:
    """Whether the same record is in the store already; BadRowError if it differs from the one there."""
    identity = restored.trajectory.header.id
    if not reader.exists(identity):
        return False
    stored = reader.record(reader.get(identity))
    changed = record.differing_fields(record.to_row(stored), record.to_row(restored))
    if changed:
        raise BadRowError(f"trajectory {identity} is in the store and differs in: {', '.join(changed)}")
    return True


def _avoid_cut_trajectory(reader: Reader, example: Example) -> Example:
    """A killed import of an earlier version left its last row cut short: the row gets another id."""
    while reader.exists(example.id) and _is_cut(reader.get(example.id)):
        if _is_cut(example.trajectory):
            break
        example = _with_new_id(example, [example.id, "again"])
    return example


def _is_cut(trajectory: Trajectory) -> bool:
    return trajectory.outcome is not None and trajectory.outcome.stop_reason is StopReason.CUT


def _with_new_id(example: Example, content: list[str | int]) -> Example:
    header = replace(example.trajectory.header, id=content_id(None, 0, content))
    return replace(example, trajectory=replace(example.trajectory, header=header))


def _stated_ids(line: Line) -> tuple[str, ...]:
    row = line.row or {}
    return str(row.get("id")), str(row.get("trajectory_id"))


def read_row(line: Line, form: Format | None, run_id: str | None) -> Example:
    """The example of one row, marked as imported."""
    if line.row is None:
        raise BadRowError(line.problem or "not a row")
    chosen = form or detect(line.row)
    assert chosen.read is not None
    try:
        example = chosen.read(line.row)
    except (AttributeError, KeyError, TypeError, IndexError) as error:
        raise BadRowError(f"not a row of {chosen.name}: {type(error).__name__} {error}") from error
    except BadRowError:
        raise
    except ValueError as error:
        raise BadRowError(f"not a row of {chosen.name}: {error}") from error
    if chosen.whole:
        if run_id is not None:
            raise BadRowError("a whole record keeps the run it is of: leave out --run")
        return example
    header = example.trajectory.header
    from_hermes_agent = "prompt_index" in line.row
    task_id = header.task_id or (str(line.row["prompt_index"]) if from_hermes_agent else None)
    facts = (line.row.get("metadata") or {}) if from_hermes_agent else {}
    model = str(facts.get("model") or header.model)
    stated = (Source.IMPORT, run_id or header.run_id, task_id, model)
    if (header.source, header.run_id, header.task_id, header.model) == stated:
        return example
    header = replace(
        header, source=Source.IMPORT, run_id=run_id or header.run_id, task_id=task_id, model=model
    )
    return replace(example, trajectory=replace(example.trajectory, header=header))


def detect(row: JSONObject) -> Format:
    """Which format a row is of, by the field that carries the conversation."""
    if "record_version" in row:
        return FORMATS["record"]
    if isinstance(row.get("conversations"), list):
        return FORMATS["sharegpt"]
    if str(row.get("schema_version", "")).startswith("ATIF-"):
        return FORMATS["atif"]
    if row.get("type") == "session":
        return FORMATS["sts"]
    if isinstance(row.get("messages"), list):
        return FORMATS["messages"]
    raise BadRowError("it has neither 'conversations' nor 'messages' nor ATIF's 'schema_version'")


def rows_of(paths: list[Path]) -> Iterator[NumberedRow]:
    """Every row of every file, broken ones included."""
    for path in paths:
        for file in _files(path):
            yield from (NumberedRow(str(file), line) for line in _lines(file, named=file == path))


def _record(example: Example) -> Record:
    """The example as the record of a trajectory: each model call saw the messages before it."""
    trajectory = example.trajectory
    rewards = () if example.reward is None else (Reward(trajectory.header.id, example.reward, "imported"),)
    return Record(trajectory, EarlierMessages(trajectory, {0: example.tools}), rewards)


class EarlierMessages(Mapping[int, ModelInput]):
    """The inputs of the model calls of an imported trajectory: the messages before, joined when needed."""

    def __init__(self, trajectory: Trajectory, tools: dict[int, tuple[JSONObject, ...]]) -> None:
        """`tools`: by the step from which on they are offered, in order."""
        self._messages = tuple(step.message for step in trajectory.steps)
        self._indices = [step.index for step in trajectory.steps if step.kind is StepKind.MODEL]
        self._calls = frozenset(self._indices)
        self._tools = [*reversed(tools.items())]

    def __getitem__(self, index: int) -> ModelInput:
        if index not in self._calls:
            raise KeyError(index)
        offered = next((schemas for at, schemas in self._tools if at <= index), ())
        return ModelInput(self._messages[:index], offered)

    def __iter__(self) -> Iterator[int]:
        return iter(self._indices)

    def __len__(self) -> int:
        return len(self._indices)


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise UsageError(f"no such file: {path}", "name JSONL, JSON or Parquet files, or folders of them")
    if not path.is_dir():  # a pipe as well: hermes import <(…), hermes import /dev/stdin
        return [path]
    if (path / _MERGED).is_file():
        return [path / _MERGED]  # a batch run: its shards hold the same rows once more
    if trials := sorted(
        file for depth in ("", "*/", "*/*/") for file in path.glob(depth + _HARBOR_TRAJECTORY)
    ):
        return trials  # of a job folder of Harbor, of several, or of one trial
    files = sorted(file for file in path.iterdir() if file.suffix in _READABLE and _is_data(file.name))
    if not files:
        raise UsageError(f"{path} holds no data files", f"files that end in {', '.join(_READABLE)}")
    return files


def _is_data(name: str) -> bool:
    return not name.startswith(".") and not name.endswith((*_NOT_DATA, ".manifest.json"))


def _lines(path: Path, *, named: bool) -> Iterator[Line]:
    if not named and not path.is_file():
        yield Line(1, None, "not a regular file: a pipe or a device is read only if you name it yourself")
    elif path.suffix == ".parquet":
        yield from _parquet(path)
    elif path.suffix == ".json":
        yield from _document(path)
    else:
        yield from _jsonl(path)


def _jsonl(path: Path) -> Iterator[Line]:
    """Rows, or the lines of one session trace joined to a row."""
    lines = read_lines(path)
    first = next(lines, None)
    if first is None:
        return
    client = session_client(first.row) if first.row is not None else None
    if client is not None:
        yield Line(first.number, None, f"a session of {client}: hermes import --from {client} reads it")
        return
    if first.row is None or first.row.get("type") != "session" or "messages" in first.row:
        yield first
        yield from lines
        return
    whole = [first, *lines]
    broken = next((line for line in whole if line.row is None), None)
    if broken is not None:
        yield broken
        return
    try:
        yield Line(1, sts.join_lines([line.row for line in whole if line.row is not None]), None)
    except BadRowError as error:
        yield Line(1, None, str(error))


def _document(path: Path) -> Iterator[Line]:
    """One JSON value: a row or a list of rows. JSON lines under the wrong name are read as such."""
    try:
        if path.stat().st_size > MAX_LINE_BYTES:
            raise UsageError(f"{path} is larger than {MAX_LINE_BYTES >> 20} MiB", "convert it to JSON lines")
        value = json.loads(path.read_text("utf-8-sig"))
    except (ValueError, RecursionError):
        yield from _jsonl(path)
        return
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}", "name a file that you can read") from error
    if isinstance(value, dict) and path.match(_HARBOR_TRAJECTORY):
        value = _with_harbor_result(value, path.parents[1] / "result.json")
    for number, row in enumerate(value if isinstance(value, list) else [value], 1):
        ok = isinstance(row, dict)
        yield Line(number, row if ok else None, None if ok else f"a JSON {type(row).__name__}, not an object")


def _with_harbor_result(row: JSONObject, result_path: Path) -> JSONObject:
    """The trajectory of a Harbor trial with its task and its reward, which a trial that failed has not."""
    extra = row.get("extra") or {}
    try:
        if not result_path.is_file() or result_path.stat().st_size > MAX_LINE_BYTES:
            return row
        result = json.loads(result_path.read_text("utf-8"))
        rewards = (result.get("verifier_result") or {}).get("rewards") or {}
        failure = (result.get("exception_info") or {}).get("exception_type")
        ours: JSONObject = {
            "task_id": str(result["task_name"]),
            "metadata": {"harbor_trial": str(result["trial_name"])},
        }
        if rewards and failure in (None, _HARBOR_TIMEOUT):
            ours["reward"] = _harbor_reward(rewards)
        return {**row, "extra": {**extra, "hermes": {**ours, **(extra.get("hermes") or {})}}}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return row  # no trial of Harbor's, or one that was killed


def _harbor_reward(rewards: Mapping[str, object]) -> float | None:
    """The value of `reward`, else the mean; None if one of them is no finite number."""
    values = [rewards["reward"]] if "reward" in rewards else list(rewards.values())
    numbers = [value for value in values if isinstance(value, int | float) and not isinstance(value, bool)]
    if len(numbers) < len(values) or not all(abs(number) <= sys.float_info.max for number in numbers):
        return None
    return sum(float(number) / len(numbers) for number in numbers)


def _parquet(path: Path) -> Iterator[Line]:
    for line in read_parquet(path):
        yield line if line.row is None else _with_json(line.number, _clean(line.row))


def _with_json(number: int, row: JSONObject) -> Line:
    """The row with its JSON texts parsed, as they were before it was a table's."""
    texts = {name: text for name in _JSON_COLUMNS if isinstance(text := row.get(name), str)}
    values = {}
    for name, text in texts.items():
        try:
            values[name] = json.loads(text)
        except (ValueError, RecursionError) as error:
            return Line(number, None, f"'{name}' is not JSON: {error}")
    return Line(number, row | values, None)


def _clean(value: Any) -> Any:
    """A table's value as it was before it was one: without nulls."""
    if isinstance(value, dict):
        return {name: _clean(item) for name, item in value.items() if item is not None}
    return [_clean(item) for item in value] if isinstance(value, list) else value
