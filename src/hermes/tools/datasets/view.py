"""The report of `dataset_inspect`, as bounded JSON. Pure.

For any dataset the text is valid JSON of at most MAX_CHARS characters: long cells are clipped, then clipped
further, and then rows are left out from the end. Everything that is left out is counted in `notes`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from hermes.core import JSON, JSONObject
from hermes.errors import ToolError
from hermes.safety.text import clip

MAX_CHARS = 24_000
MAX_SPLITS = 60
MAX_COLUMNS = 80
_CELL_CHARS = (600, 200, 60)
_MAX_ITEMS = 12
_MAX_DEPTH = 6
_NAME_CHARS = 80
_TYPE_CHARS = 120


@dataclass(frozen=True, slots=True)
class SplitInfo:
    config: str | None
    """None for local files, which have no configurations."""
    split: str
    rows: int | None
    """None if it is not known."""
    size_bytes: int | None

    def to_json(self) -> JSONObject:
        config = {} if self.config is None else {"config": self.config}
        return {**config, "split": self.split, "rows": self.rows, "size_bytes": self.size_bytes}


@dataclass(frozen=True, slots=True)
class ColumnInfo:
    name: str
    type: str


@dataclass(frozen=True, slots=True)
class DatasetView:
    dataset: str
    about: JSONObject
    """Licence, description and the like, as the hub states them; sizes of local files."""
    splits: Sequence[SplitInfo]
    shown: SplitInfo | None
    """The split that `columns` and `rows` are of; None if there is nothing to show."""
    offset: int = 0
    columns: Sequence[ColumnInfo] = ()
    rows: Sequence[JSONObject] = ()
    notes: Sequence[str] = field(default=())
    """The parts that are missing or inexact, with the reason."""


def to_text(view: DatasetView) -> str:
    """The view as JSON of at most MAX_CHARS characters."""
    for cell_chars in _CELL_CHARS:
        text = _dump(view, view.rows, cell_chars)
        if len(text) <= MAX_CHARS:
            return text
    rows = list(view.rows)
    while rows and len(text) > MAX_CHARS:
        rows.pop()
        text = _dump(view, rows, _CELL_CHARS[-1])
    return text


def choose_split(splits: Sequence[SplitInfo], config: str | None, split: str | None) -> SplitInfo:
    """The named split; without names the configuration 'default' and the split 'train', else the first."""
    configs = list(dict.fromkeys(entry.config for entry in splits))
    if config is not None and config not in configs:
        names = ", ".join(str(name) for name in configs)
        raise ToolError(f"there is no configuration '{config}'; there are: {clip(names, 1_000)}")
    config_name = config if config is not None else "default" if "default" in configs else configs[0]
    inside = {entry.split: entry for entry in splits if entry.config == config_name}
    if split is not None and split not in inside:
        where = "" if config_name is None else f" in the configuration '{config_name}'"
        raise ToolError(f"there is no split '{split}'{where}; there are: {clip(', '.join(inside), 1_000)}")
    return inside[split] if split is not None else inside.get("train") or next(iter(inside.values()))


def feature_type(feature: JSON) -> str:
    """A column's type as short text, from a feature in the notation of the `datasets` library."""
    if isinstance(feature, list):
        return f"list[{feature_type(feature[0])}]" if feature else "list"
    if not isinstance(feature, dict):
        return str(feature)
    kind = feature.get("_type")
    if kind == "Value":
        return str(feature.get("dtype", "value"))
    if kind in ("Sequence", "List", "LargeList"):
        return f"list[{feature_type(feature.get('feature'))}]"
    if kind == "ClassLabel":
        names = feature.get("names") or []
        listed = ", ".join(map(str, names[:_MAX_ITEMS]))
        return f"class label ({listed}{', …' if len(names) > _MAX_ITEMS else ''})"
    if isinstance(kind, str):
        return kind.lower()
    return "{" + ", ".join(f"{name}: {feature_type(inner)}" for name, inner in feature.items()) + "}"


def value_types(records: Iterable[Mapping[str, JSON]]) -> list[ColumnInfo]:
    """Columns of rows that come without a schema: the kinds of values that occur, in order of appearance."""
    kinds: dict[str, dict[str, None]] = {}
    for record in records:
        for name, value in record.items():
            kinds.setdefault(name, {})[_kind(value)] = None
    return [ColumnInfo(name, " or ".join(types)) for name, types in kinds.items()]


def _kind(value: JSON) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "bool"
    names = {int: "int", float: "float", str: "string", list: "list", dict: "object"}
    return names.get(type(value), type(value).__name__)


def _dump(view: DatasetView, rows: Sequence[JSONObject], cell_chars: int) -> str:
    notes = list(view.notes)
    if len(view.splits) > MAX_SPLITS:
        notes.append(f"{len(view.splits) - MAX_SPLITS} more splits are not listed")
    if len(view.columns) > MAX_COLUMNS:
        notes.append(f"{len(view.columns) - MAX_COLUMNS} more columns are not shown")
    if len(rows) < len(view.rows):
        notes.append(f"{len(view.rows) - len(rows)} rows are left out: the rows are long; ask for fewer")
    columns = view.columns[:MAX_COLUMNS]
    names = {column.name for column in columns}
    data: JSONObject = {
        "dataset": view.dataset,
        **view.about,
        "splits": [split.to_json() for split in view.splits[:MAX_SPLITS]],
    }
    if view.shown is not None:
        config = {} if view.shown.config is None else {"config": view.shown.config}
        data["shown"] = {**config, "split": view.shown.split, "offset": view.offset}
        data["columns"] = {
            clip(column.name, _NAME_CHARS): clip(column.type, _TYPE_CHARS) for column in columns
        }
        data["rows"] = [
            {
                clip(name, _NAME_CHARS): clip_cell(value, cell_chars)
                for name, value in row.items()
                if name in names
            }
            for row in rows
        ]
    if notes:
        data["notes"] = notes
    return json.dumps(data, ensure_ascii=False, default=str)


def clip_cell(value: JSON, max_chars: int, depth: int = 0) -> JSON:
    """A cell with long texts, long lists and deep nesting shortened; the omitted amount is stated."""
    if isinstance(value, str):
        return clip(value, max_chars)
    if isinstance(value, bytes):
        return f"({len(value)} bytes)"
    if isinstance(value, list | tuple | dict) and depth >= _MAX_DEPTH:
        return "…"
    if isinstance(value, list | tuple):
        items = [clip_cell(item, max_chars, depth + 1) for item in value[:_MAX_ITEMS]]
        return [*items, f"… {len(value) - _MAX_ITEMS} more items"] if len(value) > _MAX_ITEMS else items
    if isinstance(value, dict):
        pairs = list(value.items())
        cut = {
            clip(str(name), _NAME_CHARS): clip_cell(inner, max_chars, depth + 1)
            for name, inner in pairs[:_MAX_ITEMS]
        }
        return {**cut, "…": f"{len(pairs) - _MAX_ITEMS} more fields"} if len(pairs) > _MAX_ITEMS else cut
    return value
