"""A run's rows as Parquet shards with one schema for all runs, whatever tools and metadata they have.

Maps with open-ended keys cannot be columns of a stable schema: counts per tool become a list of
{tool, count, success, failure}, and `metadata` (with any field that has no column, in `extra`) a JSON
text. The same rows give the same bytes. The shards appear together, replacing those of before.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, BinaryIO, Self

from hermes.core import JSONObject
from hermes.core.files import sync_directory
from hermes.data.export.table import GROUP_BYTES, TableWriter, arrow_schema
from hermes.data.formats.base import Column
from hermes.errors import HermesError

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

FOLDER = "parquet"
SHARD_BYTES = 256 << 20
"""Size on disk at which a shard is closed."""


COLUMNS = (
    Column("id", "string", "the trajectory's id in the store"),
    Column("key", "string", "the task: the row's own id, or a hash of its content"),
    Column("sample", "int64", "which sample of that task, from 0"),
    Column("conversations", "turns", "the turns: from (system, human, gpt, tool) and value"),
    Column("model", "string", "provider/model that answered"),
    Column("source", "string", "always `batch`"),
    Column("completed", "bool", "the model ended its turn by itself"),
    Column("outcome", "outcome", "how it ended; all but stop_reason is null if it completed"),
    Column("turns", "int64", "model calls"),
    Column("tool_names", "strings", "tools that were offered"),
    Column("toolsets", "strings", "toolsets they came from"),
    Column("tool_stats", "tools", "calls of each offered tool: count, success, failure"),
    Column("unknown_tools", "tools", "the same for calls of tools that were not offered"),
    Column("usage", "usage", "tokens, in five disjoint counters"),
    Column("cost_usd", "double", "null if a price is unknown"),
    Column("reward", "double", "null if there was no grader, or it failed"),
    Column("reward_error", "string", "why the grader failed"),
    Column("metadata", "string", "the task's other fields, as JSON"),
    Column("run_id", "string", "the run"),
    Column("task_id", "string", "equal to key"),
    Column("created_at_ms", "int64", "Unix time of the start"),
    Column("duration_s", "double", "wall clock, grading included"),
    Column("latency_ms", "doubles", "of each model call"),
    Column("extra", "string", "fields without a column, as JSON; usually null"),
)


def schema() -> pa.Schema:
    return arrow_schema(COLUMNS)


def to_record(row: JSONObject) -> JSONObject:
    """A dataset row in the form of the schema."""
    columns = {column.name for column in COLUMNS}
    extra = {name: value for name, value in row.items() if name not in columns}
    return {
        **{name: row.get(name) for name in columns},
        "tool_stats": _as_list(row["tool_stats"]),
        "unknown_tools": _as_list(row["unknown_tools"]),
        "metadata": json.dumps(row["metadata"], ensure_ascii=False),
        "extra": json.dumps(extra, ensure_ascii=False) if extra else None,
    }


@dataclass(slots=True)
class _Shard:
    file: BinaryIO
    table: TableWriter


class Shards:
    """Writes `folder`/parquet. What was there stays until the block ends well, and then goes."""

    def __init__(
        self, folder: Path, *, shard_bytes: int = SHARD_BYTES, group_bytes: int = GROUP_BYTES
    ) -> None:
        self._folder = folder
        self._shard_bytes = shard_bytes
        self._group_bytes = group_bytes
        self._shard: _Shard | None = None
        self.count = 0
        """Shards begun so far."""

    def __enter__(self) -> Self:
        try:
            self._temporary = Path(tempfile.mkdtemp(prefix=f".{FOLDER}.", dir=self._folder))
        except OSError as error:
            raise self._failed(error) from error
        return self

    def add(self, row: JSONObject, n_bytes: int) -> None:
        """`n_bytes`: the length of the row's JSON text."""
        record = to_record(row)
        try:
            shard = self._shard or self._open_shard()
            shard.table.add(record, n_bytes)
            if shard.file.tell() >= self._shard_bytes:
                self._close_shard()
        except OSError as error:
            raise self._failed(error) from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                if self.count == 0:
                    self._open_shard()  # an empty run still has a schema
                self._close_shard()
                self._publish()
        except OSError as failure:
            raise self._failed(failure) from failure
        finally:
            self._abandon()

    def _open_shard(self) -> _Shard:
        path = self._temporary / str(self.count)
        file = os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb")
        self._shard = _Shard(file, TableWriter(file, COLUMNS, arrow=False, group_bytes=self._group_bytes))
        self.count += 1
        return self._shard

    def _close_shard(self) -> None:
        if self._shard is None:
            return
        self._shard.table.close()
        self._shard.file.flush()
        os.fsync(self._shard.file.fileno())
        self._shard.file.close()
        self._shard = None

    def _abandon(self) -> None:
        """Takes away what did not become a shard; nothing if all did."""
        if self._shard is not None:
            self._shard.table.abandon()
            with contextlib.suppress(OSError):
                self._shard.file.close()
        shutil.rmtree(self._temporary, ignore_errors=True)

    def _publish(self) -> None:
        """For a moment there is no folder at all: better than one that mixes two sets of shards."""
        for number in range(self.count):
            name = f"train-{number:05}-of-{self.count:05}.parquet"
            (self._temporary / str(number)).rename(self._temporary / name)
        remove(self._folder)
        self._temporary.rename(self._folder / FOLDER)
        sync_directory(self._folder)

    def _failed(self, error: OSError) -> HermesError:
        return HermesError(
            f"cannot write {self._folder / FOLDER}: {error.strerror or error}",
            "free space and make the directory writable, then run the same command again",
        )


def remove(folder: Path) -> None:
    """Takes the shards of an earlier finalisation away."""
    shutil.rmtree(folder / FOLDER, ignore_errors=True)


def _as_list(stats: JSONObject) -> list[JSONObject]:
    return [{"tool": tool, **counts} for tool, counts in stats.items()]
