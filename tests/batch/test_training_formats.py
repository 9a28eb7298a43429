"""The documented ways from a run's files into trainers, read from the document and tried."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.batch import made

PAGE = Path(__file__).parents[2] / "docs/batch-output.md"
SAID = [
    {"from": "system", "value": "Use the tools."},
    {"from": "human", "value": "2 + 2?"},
    {"from": "gpt", "value": "<tool_call>\n{}\n</tool_call>"},
    {"from": "tool", "value": "<tool_response>\n4\n</tool_response>"},
    {"from": "gpt", "value": "4"},
]
ROLES = ["system", "user", "assistant", "tool", "assistant"]


@pytest.fixture
def run(tmp_path: Path) -> Path:
    made.finish(tmp_path, [made.done("a", conversations=SAID), made.done("b", conversations=SAID)], keys="ab")
    return tmp_path


@pytest.mark.parametrize("form", ["parquet", "json"])
def test_the_documented_mapping_gives_trl_its_messages(run: Path, form: str, tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    files = {"parquet": "parquet/*.parquet", "json": "trajectories.jsonl"}
    rows = datasets.load_dataset(
        form, data_files=str(run / files[form]), split="train", cache_dir=str(tmp_path / "cache")
    )
    snippet = re.search(r"```python\n# rows for TRL\n(.*?)\nrows = ", PAGE.read_text("utf-8"), re.DOTALL)
    assert snippet is not None
    names: dict[str, Any] = {}
    exec(snippet[1], names)
    mapped = rows.map(names["to_messages"], remove_columns=rows.column_names)
    assert mapped.column_names == ["messages"]
    for row in mapped:
        assert [message["role"] for message in row["messages"]] == ROLES
        assert [message["content"] for message in row["messages"]] == [turn["value"] for turn in SAID]


def test_the_documented_axolotl_entry_names_every_role_and_the_fields_that_rows_have(run: Path) -> None:
    block = re.search(r"```yaml\n(datasets:.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    assert block is not None
    (entry,) = YAML(typ="safe").load(block[1])["datasets"]
    names = entry["message_property_mappings"]
    to_role = {source: role for role, sources in entry["roles"].items() for source in sources}
    (row, _) = made.lines(run / "trajectories.jsonl")
    turns = row[entry["field_messages"]]
    assert [to_role[turn[names["role"]]] for turn in turns] == ROLES
    assert [turn[names["content"]] for turn in turns] == [turn["value"] for turn in SAID]
    assert set(entry["roles_to_train"]) <= set(entry["roles"])
