"""The Parquet shards: one schema for all runs, and what the datasets library makes of them."""

from __future__ import annotations

import json
import stat
import subprocess
import sys
from pathlib import Path

import datasets
import pyarrow.parquet
import pytest

from hermes.data.export.sink import open_shards
from hermes.data.export.table import arrow_schema
from hermes.data.formats.batch import COLUMNS, FORMAT, dataset_row
from hermes.data.lines import EncodedRow, encode_row
from tests.batch.made import done, finish, lines, row

CALLS = {"count": 2, "success": 1, "failure": 1}


@pytest.fixture(autouse=True)
def quiet() -> None:
    datasets.disable_progress_bars()


def load(folder: Path, cache: Path) -> datasets.Dataset:
    return datasets.load_dataset(str(folder), split="train", cache_dir=str(cache))


def test_the_folder_is_a_dataset_repository(tmp_path: Path) -> None:
    cut = {"stop_reason": "max_turns", "boundary": "limit", "error_type": "LimitError", "detail": "10 calls"}
    entries = [
        done(
            "a",
            tool_names=["web", "file"],
            tool_stats={"web": CALLS, "ghost": CALLS},
            reward=0.5,
            metadata={"n": [1]},
        ),
        done("b", outcome=cut, completed=False, cost_usd=None),
    ]
    finish(tmp_path / "run", entries, keys="ab")
    got = load(tmp_path / "run", tmp_path / "cache")
    assert got.num_rows == 2
    a, b = got
    assert a["conversations"] == row("a")["conversations"]
    assert a["tool_stats"] == [
        {"tool": "web", **CALLS},
        {"tool": "file", "count": 0, "success": 0, "failure": 0},
    ]
    assert a["unknown_tools"] == [{"tool": "ghost", **CALLS}]
    assert (a["reward"], json.loads(a["metadata"]), a["usage"]) == (0.5, {"n": [1]}, row("a")["usage"])
    assert (b["outcome"], b["cost_usd"], b["completed"], b["extra"]) == (cut, None, False, None)


def test_runs_with_other_tools_and_metadata_join_without_a_word(tmp_path: Path) -> None:
    finish(tmp_path / "1", [done("a", tool_names=["web"], metadata={"n": 1}, latency_ms=[])], keys="a")
    finish(
        tmp_path / "2",
        [done("b", tool_names=["file"], metadata={"n": "one", "deep": {"x": None}}, reward=1.0)],
        keys="b",
    )
    finish(tmp_path / "3", [], keys="c")
    parts = [load(tmp_path / name, tmp_path / "cache" / name) for name in "12"]
    joined = datasets.concatenate_datasets(parts)
    assert joined["key"][:] == ["a", "b"]
    together = datasets.load_dataset(
        "parquet",
        data_files=[str(path) for path in sorted(tmp_path.glob("?/parquet/*.parquet"))],
        split="train",
        cache_dir=str(tmp_path / "cache" / "all"),
    )
    assert together.features == joined.features
    assert [json.loads(text) for text in together["metadata"]] == [
        {"n": 1},
        {"n": "one", "deep": {"x": None}},
    ]


def test_a_field_without_a_column_is_kept_as_json(tmp_path: Path) -> None:
    finish(tmp_path, [done("a", novelty={"x": 1})], keys="a")
    (got,) = pyarrow.parquet.read_table(tmp_path / "parquet").to_pylist()
    assert json.loads(got["extra"]) == {"novelty": {"x": 1}}


def test_shards_close_at_their_size_and_are_numbered_together(tmp_path: Path) -> None:
    with open_shards(tmp_path / "parquet", FORMAT, shard_bytes=3_000, group_bytes=1_000) as shards:
        for number in range(30):
            sample = row(f"k{number}", metadata={"random": f"{number * 7919:x}" * 50})
            shards.add(encode_row(dataset_row(sample)))
    names = sorted(path.name for path in (tmp_path / "parquet").iterdir())
    assert len(names) > 2
    assert names == [f"train-{n:05}-of-{len(names):05}.parquet" for n in range(len(names))]
    tables = [pyarrow.parquet.read_table(tmp_path / "parquet" / name) for name in names]
    assert [key for table in tables for key in table["key"].to_pylist()] == [f"k{n}" for n in range(30)]
    assert all(table.schema == arrow_schema(COLUMNS) for table in tables)


def test_fewer_shards_than_before_leave_none_of_the_old_ones(tmp_path: Path) -> None:
    for count in (30, 1):
        with open_shards(tmp_path / "parquet", FORMAT, shard_bytes=1, group_bytes=1) as shards:
            for number in range(count):
                shards.add(encode_row(dataset_row(row(f"k{number}"))))
    assert [path.name for path in (tmp_path / "parquet").iterdir()] == ["train-00000-of-00001.parquet"]


def test_a_failure_half_way_keeps_the_shards_of_before(tmp_path: Path) -> None:
    with open_shards(tmp_path / "parquet", FORMAT) as shards:
        shards.add(encode_row(dataset_row(row("old"))))
    with pytest.raises(KeyError), open_shards(tmp_path / "parquet", FORMAT, group_bytes=1) as shards:
        shards.add(encode_row(dataset_row(row("new"))))
        shards.add(EncodedRow({"id": "broken"}, "{}"))
    assert [path.name for path in tmp_path.iterdir()] == ["parquet"]
    assert pyarrow.parquet.read_table(tmp_path / "parquet")["key"].to_pylist() == ["old"]


def test_shards_are_private_to_the_user(tmp_path: Path) -> None:
    finish(tmp_path, [done("a")], keys="a")
    for path in (tmp_path / "parquet").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_the_columns_are_those_of_the_jsonl(tmp_path: Path) -> None:
    finish(tmp_path, [done("a")], keys="a")
    assert [column.name for column in COLUMNS] == [*lines(tmp_path / "trajectories.jsonl")[0], "extra"]


def test_the_jsonl_loads_with_the_features_that_the_documentation_gives(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The library guesses types from the first 10 MB: what is null there and not later needs them stated."""
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    text = "word " * 100_000
    entries = [
        done(f"k{n:02}", conversations=[{"from": "human", "value": text}], cost_usd=None) for n in range(24)
    ]
    entries.append(done("last", cost_usd=0.5, reward=1.0, tool_names=["t"], tool_stats={"u": CALLS}))
    finish(tmp_path, entries, keys=[entry.key for entry in entries])
    path = Path(__file__).parents[2] / "docs" / "batch-output.md"
    snippet = path.read_text("utf-8").split("```python\n# features", 1)[1].split("```", 1)[0]
    scope: dict[str, object] = {}
    exec("# features" + snippet.replace('"data/my_run/', f'"{tmp_path}/'), scope)
    rows = scope["rows"]
    assert isinstance(rows, datasets.Dataset)
    assert rows.num_rows == 25
    assert (rows[24]["reward"], rows[24]["cost_usd"], rows[0]["cost_usd"]) == (1.0, 0.5, None)


def test_without_pyarrow_everything_else_is_written_and_one_line_says_so(tmp_path: Path) -> None:
    finish(tmp_path, [done("a")], keys="a")
    script = (
        "import sys\n"
        "sys.modules['pyarrow'] = None\n"
        "from pathlib import Path\n"
        "from hermes.batch.output.finalise import finalise\n"
        "from tests.batch.made import dataset, spec\n"
        "print(*finalise(Path(sys.argv[1]), spec(), dataset('a')).notes, sep='\\n')\n"
    )
    ended = subprocess.run([sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True)
    assert ended.stdout == "no Parquet: it needs pyarrow (pip install 'hermes-research[export]')\n", (
        ended.stderr
    )
    assert not (tmp_path / "parquet").exists()
    assert len(lines(tmp_path / "trajectories.jsonl")) == 1
    assert "parquet/" not in (tmp_path / "README.md").read_text()
