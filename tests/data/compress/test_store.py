"""Compressed trajectories as records of their own: beside the original, which stays as it was."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hermes.core import Relation, Reward, StepKind
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


@pytest.mark.parametrize("form", ["record", "atif"])
def test_an_exported_file_gives_the_rows_that_its_trajectories_give(
    home: Path, tokenizer_folder: Path, form: str
) -> None:
    with Reader(home / "hermes.db") as reader:
        ids = [trajectory.header.id for trajectory in reader.trajectories(Filter(run_id="my_run"))]
    with Writer(home / "hermes.db") as writer:
        for value in (0.25, 0.75):
            writer.add_reward(Reward(ids[0], value, "check.py:grade")).result()
        writer.add_reward(Reward(ids[0], 0.1, "reward-model:mine")).result()
    for trajectory_id, verdicts in ((ids[0], ("4", "2")), (ids[1], ("good",))):
        for verdict in verdicts:
            assert hermes(home, "rate", trajectory_id, verdict).returncode == 0
    file = home / "exported.jsonl"
    arguments = ("--all", "--run", "my_run", "--format", form, "--output", str(file))
    assert hermes(home, "export", *arguments).returncode == 0
    compress(home, tokenizer_folder, "my_run", home / "stored.jsonl")
    compress(home, tokenizer_folder, str(file), home / "filed.jsonl")
    rows = made.read_jsonl(home / "filed.jsonl")
    stored = made.read_jsonl(home / "stored.jsonl")
    assert [row["compression_metrics"] for row in rows] == [row["compression_metrics"] for row in stored]
    assert [row["conversations"] for row in rows] == [row["conversations"] for row in stored]
    if form == "record":
        assert rows == stored
        assert [(row.get("reward"), row.get("rating")) for row in rows] == [
            (0.75, 2.0),
            (None, 5.0),
            (None, None),
        ]


def test_compressed_records_in_a_file_are_left_out_and_broken_ones_are_named(
    home: Path, tokenizer_folder: Path
) -> None:
    compress(home, tokenizer_folder, "my_run", home / "stored.jsonl")
    file = home / "exported.jsonl"
    arguments = ("--all", "--run", "my_run", "--format", "record", "--output", str(file))
    assert hermes(home, "export", *arguments).returncode == 0
    rows = made.read_jsonl(file)
    assert sum(row["header"]["relation"] == "compressed" for row in rows) == 2
    compress(home, tokenizer_folder, str(file), home / "filed.jsonl")
    assert made.read_jsonl(home / "filed.jsonl") == made.read_jsonl(home / "stored.jsonl")
    made.write_jsonl(file, [{**rows[0], "record_version": 9}, {**rows[0], "steps": "none"}])
    done = hermes(home, "compress", str(file), "--tokenizer", str(tokenizer_folder))
    assert done.returncode == 1 and "exported.jsonl:1: record_version is 9" in done.stdout, done.stdout
    reasons = [row["reason"] for row in made.read_jsonl(home / "exported_compressed_bad_rows.jsonl")]
    assert len(reasons) == 2 and reasons[1].startswith("exported.jsonl:2: "), reasons


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
