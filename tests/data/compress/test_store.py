"""Compressed trajectories as records of their own: beside the original, which stays as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes.core import Relation, StepKind
from hermes.data.record import to_record
from hermes.store import Filter, Reader, Writer
from tests import records
from tests.cli.process import failure, hermes
from tests.data.compress import made


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A store with three sessions of a run, one of them short, and one of no run."""
    with Writer(tmp_path / "hermes.db") as writer:
        for number, exchanges in enumerate((10, 12, 1)):
            messages = made.session(number, exchanges)
            records.record(
                writer, messages, run_id="my_run", task_id=f"t{number}", metadata={"level": number}
            )
        records.record(writer, made.session(9, 10))
    return tmp_path


def compress(home: Path, folder: Path, source: str, output: Path) -> dict[str, object]:
    done = hermes(
        home,
        *("compress", "--input", source, "--output", str(output), "--tokenizer", str(folder)),
        *("--target-max-tokens", "3500", "--json"),
    )
    assert done.returncode == 0, done.stderr
    facts: dict[str, object] = json.loads(done.stdout)
    return facts


def test_a_query_gives_derived_records_and_leaves_the_originals(home: Path, tokenizer_folder: Path) -> None:
    with Reader(home / "hermes.db") as reader:
        originals = {
            each.header.id: to_record(reader, each, with_inputs=True) for each in reader.trajectories()
        }
    compress(home, tokenizer_folder, "run=my_run metadata.level!=7", home / "out.jsonl")
    rows = made.read_jsonl(home / "out.jsonl")
    assert len(rows) == 3 and [row["metadata"]["level"] for row in rows] == [0, 1, 2]
    with Reader(home / "hermes.db") as reader:
        for trajectory_id, record in originals.items():
            assert to_record(reader, reader.get(trajectory_id), with_inputs=True) == record
        derived = [each for each in reader.trajectories() if each.header.relation is Relation.COMPRESSED]
        assert [each.header.id for each in derived] == [row["id"] for row in rows if "parent_id" in row]
        assert len(derived) == 2
        for each, row in zip(derived, rows, strict=False):
            parent = reader.get(each.header.parent_id or "")
            assert each.header.metadata["compression"] == row["metadata"]["compression"]
            assert each.outcome == parent.outcome and each.header.run_id == "my_run"
            assert each.usage.total == 0 and each.cost_usd == 0, "what was spent counts once"
            assert all(step.call is None or step.call.tokens is None for step in each.steps)
            first = next(step for step in each.steps if step.kind is StepKind.MODEL)
            assert reader.model_input(each.header.id, first)[1] == list(records.TOOLS)


def test_compressing_again_adds_nothing_and_takes_no_compressed_record(
    home: Path, tokenizer_folder: Path
) -> None:
    compress(home, tokenizer_folder, "my_run", home / "out.jsonl")
    with Reader(home / "hermes.db") as reader:
        count = reader.count()
    first = (home / "out.jsonl").read_bytes()
    compress(home, tokenizer_folder, "my_run", home / "out.jsonl")
    assert (home / "out.jsonl").read_bytes() == first
    with Reader(home / "hermes.db") as reader:
        assert reader.count() == count == 6


def test_a_batch_run_is_read_from_its_folder_and_recorded_in_the_store(
    home: Path, tokenizer_folder: Path
) -> None:
    from hermes.data.formats.sharegpt import to_row

    folder = home / "data" / "my_run"
    folder.mkdir(parents=True)
    with Reader(home / "hermes.db") as reader:
        found = list(reader.trajectories(Filter(run_id="my_run")))
        made.write_jsonl(
            folder / "trajectories.jsonl", [to_row(each, records.TOOLS, reward=0.5) for each in found]
        )
    (folder / "run.json").write_text("{}")
    compress(home, tokenizer_folder, str(folder), folder / "out.jsonl")
    rows = made.read_jsonl(folder / "out.jsonl")
    assert [row["reward"] for row in rows] == [0.5] * 3
    with Reader(home / "hermes.db") as reader:
        assert [each.header.relation for each in map(reader.get, (row["id"] for row in rows))] == [
            Relation.COMPRESSED,
            Relation.COMPRESSED,
            None,
        ]


def test_both_versions_are_shown_side_by_side_with_the_folds_marked(
    home: Path, tokenizer_folder: Path
) -> None:
    facts = compress(home, tokenizer_folder, "my_run", home / "out.jsonl")
    assert facts["summary"]["trajectories_compressed"] == 2  # type: ignore[index]
    row = made.read_jsonl(home / "out.jsonl")[0]
    env = {"COLUMNS": "140"}
    shown = hermes(home, "trajectories", "show", row["parent_id"], "--compressed", env=env).stdout
    assert shown == hermes(home, "trajectories", "show", row["id"], "--compressed", env=env).stdout
    assert f"{row['parent_id']}  ->  {row['id']}" in shown
    folds = row["metadata"]["compression"]["map"]
    first = folds[0]
    assert (
        f"[{first['message']}] tool  tool_output {first['original_tokens']} -> {first['kept_tokens']}"
        in shown
    )
    marked = [line for line in shown.splitlines() if line.startswith("~ ")]
    assert any('| {"folded": ' in line for line in marked)
    assert "  Step 9." in shown and "(unchanged)" in shown
    both = json.loads(hermes(home, "trajectories", "show", row["id"], "--compressed", "--json").stdout)
    assert both["original"]["header"]["id"] == row["parent_id"]
    assert both["compressed"]["header"]["metadata"]["compression"]["map"] == folds
    with Reader(home / "hermes.db") as reader:
        lone = next(each.header.id for each in reader.trajectories() if each.header.run_id is None)
    error, fix = failure(hermes(home, "trajectories", "show", lone, "--compressed"), 2)
    assert "has no compressed version" in error and "hermes compress" in fix
