"""Rows as Parquet or Arrow: the types that columns may have, and a writer that holds one group of rows.

A value whose keys are open-ended (tool schemas, arguments, metadata) has the type JSON: text for every
reader, the value itself for `datasets`, which reads the types from the file's metadata. The same rows give
the same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, BinaryIO

from hermes.core import JSON, JSONObject
from hermes.data.formats.base import Column
from hermes.errors import MissingDependencyError

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

GROUP_BYTES = 16 << 20
"""JSON text of the rows that become one group; as much is held in memory."""
Kind = Any
"""A name of a plain type, a list of one kind, or a struct as a dictionary of kinds."""

_OUTCOME = dict.fromkeys(("stop_reason", "boundary", "error_type", "detail"), "string")
_COUNTERS = ("input_tokens", "cached_input_tokens", "cache_write_tokens", "output_tokens", "reasoning_tokens")
_TOOL_COUNTS = {"tool": "string", "count": "int64", "success": "int64", "failure": "int64"}


def _messages(arguments: str, call: JSONObject, message: JSONObject) -> list[Kind]:
    function = {"name": "string", "arguments": arguments}
    calls = [{"id": "string", "type": "string", "function": function, **call}]
    return [
        {
            "role": "string",
            "content": "string",
            "reasoning_content": "string",
            "tool_calls": calls,
            "tool_call_id": "string",
            "name": "string",
            **message,
        }
    ]


KINDS: dict[str, Kind] = {
    **{name: name for name in ("string", "int64", "double", "bool", "json")},
    "strings": ["string"],
    "doubles": ["double"],
    "ints": ["int64"],
    "bools": ["bool"],
    "turns": [{"from": "string", "value": "string"}],
    "outcome": _OUTCOME,
    "usage": dict.fromkeys(_COUNTERS, "int64"),
    "tools": [_TOOL_COUNTS],
    "spans": [{"step": "int64", "start": "int64", "end": "int64", "policy_version": "string"}],
    "messages": _messages(
        "string", {"error": "string", "repaired": "bool"}, {"images": ["string"], "weight": "int64"}
    ),
    "template_messages": _messages("json", {}, {}),
    "flagged_messages": _messages("json", {}, {"train": "bool"}),
    "trace_messages": [
        {
            "role": "string",
            "content": "string",
            "reasoningContent": "string",
            "toolCalls": [{"id": "string", "function": {"name": "string", "arguments": "string"}}],
            "toolCallId": "string",
            "model": "string",
            "timestamp": "int64",
        }
    ],
}
"""Every type that a column may have."""


_PLAIN: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "int64": int,
    "double": (int, float),
    "bool": bool,
    "json": object,
}


def fits(value: JSON, kind: Kind) -> bool:
    """Whether a value can be in a column of this kind (one of `KINDS`, or its part); null can, if not in a
    list."""
    if value is None:
        return True
    if isinstance(kind, list):
        return isinstance(value, list) and all(item is not None and fits(item, kind[0]) for item in value)
    if isinstance(kind, dict):
        return isinstance(value, dict) and all(fits(value.get(name), part) for name, part in kind.items())
    return isinstance(value, _PLAIN[kind]) and (kind in ("bool", "json") or not isinstance(value, bool))


def arrow_schema(columns: Sequence[Column]) -> pa.Schema:
    """With the metadata from which `datasets` learns which texts are JSON."""
    pa = _pyarrow()
    features = {column.name: _feature(KINDS[column.kind]) for column in columns}
    fields = [pa.field(column.name, _arrow(KINDS[column.kind], pa, pa.json_())) for column in columns]
    return pa.schema(fields, metadata={"huggingface": json.dumps({"info": {"features": features}})})


class TableWriter:
    """Rows into one open file, a group at a time."""

    def __init__(
        self, file: BinaryIO, columns: Sequence[Column], *, arrow: bool, group_bytes: int = GROUP_BYTES
    ) -> None:
        """`arrow`: an Arrow stream instead of Parquet."""
        self._file = file
        self._columns = columns
        self._schema = arrow_schema(columns)
        pa = _pyarrow()
        self._plain = pa.schema(
            [pa.field(column.name, _arrow(KINDS[column.kind], pa, pa.string())) for column in columns]
        )
        self._writer = _open_stream(file, self._schema) if arrow else _open_parquet(file, self._schema)
        self._group_bytes = group_bytes
        self._group: list[JSONObject] = []
        self._waiting_bytes = 0

    def add(self, row: JSONObject, n_bytes: int) -> None:
        """`n_bytes`: the length of the row's JSON text."""
        self._group.append({column.name: _value(row.get(column.name), column) for column in self._columns})
        self._waiting_bytes += n_bytes
        if self._waiting_bytes >= self._group_bytes:
            self.flush()

    def flush(self) -> None:
        """Writes the waiting rows as one group."""
        if not self._group:
            return
        pa = _pyarrow()
        table = pa.Table.from_pylist(self._group, schema=self._plain).cast(self._schema)
        self._writer.write_table(table)
        self._group.clear()
        self._waiting_bytes = 0

    def close(self) -> None:
        """Writes what waits and the file's end; the file stays open."""
        self.flush()
        self._writer.close()

    def abandon(self) -> None:
        """Prevents the writer from completing the file when it is garbage-collected."""
        if hasattr(self._writer, "is_open"):
            self._writer.is_open = False


def is_available() -> bool:
    try:
        import pyarrow.parquet  # type: ignore[import-untyped] # noqa: F401
    except ImportError:
        return False
    return True


def json_text(value: JSON) -> str | None:
    if value is None:
        return None
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:  # a lone surrogate, which has no form but an escape
        return json.dumps(value)
    return text


def _value(value: JSON, column: Column) -> JSON:
    return _encode_value(value, KINDS[column.kind])


def _encode_value(value: JSON, kind: Kind) -> JSON:
    """The value with JSON as text where its kind is JSON."""
    if value is None:
        return None
    if kind == "json":
        return json_text(value)
    if isinstance(kind, list):
        return [_encode_value(item, kind[0]) for item in value]
    if isinstance(kind, dict):
        return {name: _encode_value(value.get(name), inner) for name, inner in kind.items()}
    return value


def decode_value(value: JSON, kind: Kind) -> JSON:
    """The reverse for reading: JSON text parsed, and fields that are null left out."""
    if value is None:
        return None
    if kind == "json":
        return json.loads(value)
    if isinstance(kind, list):
        return [decode_value(item, kind[0]) for item in value]
    if isinstance(kind, dict):
        members = {name: decode_value(value.get(name), inner) for name, inner in kind.items()}
        return {name: item for name, item in members.items() if item is not None}
    return value


def _feature(kind: Kind) -> JSON:
    """The kind in the words of `datasets`."""
    if isinstance(kind, list):
        return {"feature": _feature(kind[0]), "_type": "List"}
    if isinstance(kind, dict):
        return {name: _feature(inner) for name, inner in kind.items()}
    if kind == "json":
        return {"_type": "Json"}
    return {"dtype": {"double": "float64"}.get(kind, kind), "_type": "Value"}


def _arrow(kind: Kind, pa: Any, json_type: pa.DataType) -> pa.DataType:
    if isinstance(kind, list):
        return pa.list_(_arrow(kind[0], pa, json_type))
    if isinstance(kind, dict):
        return pa.struct([(name, _arrow(inner, pa, json_type)) for name, inner in kind.items()])
    plain: dict[str, Callable[[], pa.DataType]] = {
        "string": pa.string,
        "int64": pa.int64,
        "double": pa.float64,
        "bool": pa.bool_,
    }
    return json_type if kind == "json" else plain[kind]()


def _open_parquet(file: BinaryIO, schema: pa.Schema) -> Any:
    import pyarrow.parquet

    return pyarrow.parquet.ParquetWriter(file, schema, compression="zstd")


def _open_stream(file: BinaryIO, schema: pa.Schema) -> Any:
    return _pyarrow().ipc.new_stream(file, schema)


def _pyarrow() -> Any:
    try:
        import pyarrow
        import pyarrow.ipc  # type: ignore[import-untyped]
    except ImportError as error:
        raise MissingDependencyError("pyarrow", "export", "Parquet and Arrow") from error
    return pyarrow
