"""The keys of a tool schema keep the order in which the model read them: record, exports and imports."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from hermes.core import Message
from hermes.data.export.run import ExportPlan, export
from hermes.data.formats.registry import FORMATS
from hermes.data.importing import import_files
from hermes.models.render.prompting import tool_system_text
from hermes.store import Reader, Writer
from tests import records

SCHEMA: dict[str, Any] = {
    "name": "weather",
    "description": "Tells the weather.",
    "parameters": {
        "type": "object",
        "properties": {
            "zone": {"type": "string", "description": "Z"},
            "city": {"type": "string", "enum": ["a"]},
        },
        "required": ["zone"],
        "additionalProperties": False,
    },
}


def _shuffled(value: Any, draw: random.Random) -> Any:
    if isinstance(value, dict):
        return {key: _shuffled(value[key], draw) for key in draw.sample(list(value), k=len(value))}
    return value


def _schemas(value: Any) -> list[str]:
    """Every schema of the tool in a row, as text: order counts."""
    if isinstance(value, dict):
        if value.get("name") == "weather" and "parameters" in value:
            return [json.dumps(value)]
        return [text for item in value.values() for text in _schemas(item)]
    return [text for item in value for text in _schemas(item)] if isinstance(value, list) else []


@pytest.mark.parametrize("name", ["messages", "openai-finetune", "trl-sft", "axolotl", "atif", "record"])
@pytest.mark.parametrize("ending", ["jsonl", "parquet"])
def test_every_export_and_import_keeps_the_order_of_each_trajectory(
    tmp_path: Path, name: str, ending: str
) -> None:
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    draw = random.Random(seed)
    offered = [_shuffled(SCHEMA, draw) for _ in range(6)]
    turns = [Message.user("Hi."), Message.assistant("Hello.")]
    with Writer(tmp_path / "a.db") as writer:
        ids = [records.record(writer, turns, tools=(schema,)) for schema in offered]
    target = tmp_path / f"rows.{ending}"
    with Reader(tmp_path / "a.db") as reader:
        for trajectory_id, schema in zip(ids, offered, strict=True):
            stored = reader.get(trajectory_id)
            (tool,) = reader.model_input(trajectory_id, stored.steps[-1])[1]
            assert json.dumps(tool) == json.dumps(schema)
        export(reader, ExportPlan(FORMATS[name], target))
    if ending == "jsonl":
        rows = [json.loads(line) for line in target.read_text().splitlines()]
        assert [_schemas(row) for row in rows] == [[json.dumps(schema)] for schema in offered]
    with Writer(tmp_path / "b.db") as writer, Reader(tmp_path / "b.db") as reader:
        assert import_files([target], reader, writer, form=name).rows == len(offered)
        restored = [reader.model_input(t.header.id, t.steps[-1])[1][0] for t in reader.trajectories()]
    assert [json.dumps(tool) for tool in restored] == [json.dumps(schema) for schema in offered]


def test_the_dialect_shows_the_schema_as_it_is_with_the_name_first() -> None:
    schema = {"parameters": {"type": "object", "properties": {}}, "name": "clock"}
    assert '\n{"name": "clock", "parameters": {"type": "object", "properties": {}}}\n' in tool_system_text(
        [schema]
    )
