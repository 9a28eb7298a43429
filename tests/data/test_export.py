"""The export as a whole: the same bytes twice, whole or not at all, and an account of what was left out."""

from __future__ import annotations

import hashlib
import json
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet
import pytest

from hermes.core import Boundary, Message, Outcome, Relation, Reward, StopReason, ToolCall
from hermes.data.curate.base import Length, NearDuplicates
from hermes.data.example import load
from hermes.data.export import manifest
from hermes.data.export.run import ExportPlan, export, preview
from hermes.data.export.select import TrajectorySelection
from hermes.data.formats.registry import FORMATS
from hermes.data.redaction.redact import RedactionLevel
from hermes.data.where import parse
from hermes.errors import HermesError, UsageError
from hermes.safety.redact import Redactor
from hermes.store import Filter, Reader, Writer
from tests import records

RUN = """
import sys
from pathlib import Path
from hermes.data.export.run import ExportPlan, export
from hermes.data.formats.registry import FORMATS
from hermes.store import Reader
with Reader(Path(sys.argv[1])) as reader:
    print("go", flush=True)
    export(reader, ExportPlan(FORMATS[sys.argv[2]], Path(sys.argv[3])))
"""


@pytest.fixture
def db(tmp_path: Path) -> Path:
    path = tmp_path / "hermes.db"
    with Writer(path) as writer:
        for number in range(40):
            records.record(writer, records.conversation(f"What is {number} + 1?", f"It is {number + 1}."))
        cut = Outcome(StopReason.MAX_TURNS, Boundary.LIMIT)
        records.record(writer, records.conversation("Cut off"), outcome=cut)
    return path


@pytest.fixture
def reader(db: Path) -> Iterator[Reader]:
    with Reader(db) as opened:
        yield opened


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


@pytest.mark.parametrize("ending", [".jsonl", ".parquet", ".arrow"])
@pytest.mark.parametrize("name", ["sharegpt", "messages", "trl-sft", "axolotl", "atif", "sts"])
def test_two_exports_are_the_same_bytes(reader: Reader, tmp_path: Path, name: str, ending: str) -> None:
    for folder in ("a", "b"):
        export(reader, ExportPlan(FORMATS[name], tmp_path / folder / f"data{ending}", eval_share=0.25))
    first = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert first == {path.name: path.read_bytes() for path in (tmp_path / "b").iterdir()}
    assert set(first) == {
        f"data.train{ending}",
        f"data.eval{ending}",
        "data.manifest.json",
        "data.removed.jsonl",
    }


def test_the_manifest_has_counts_filters_and_hashes_that_hold(reader: Reader, tmp_path: Path) -> None:
    output = tmp_path / "data.jsonl"
    report = export(
        reader, ExportPlan(FORMATS["messages"], output, TrajectorySelection(Filter(model="test/model")))
    )
    facts = manifest.read(tmp_path / "data.manifest.json")
    assert facts["rows"] == report.rows == 40
    assert facts["format"] == {
        "name": "messages",
        "version": 1,
        "calls": "structured",
        "thinking": "seen",
    }
    (file,) = facts["files"]
    assert file["sha256"] == hashlib.sha256(output.read_bytes()).hexdigest()
    assert file["bytes"] == output.stat().st_size
    assert facts["filters"]["stages"] == [
        {"filter": "in the store", "kept": 41},
        {"filter": "model", "value": "test/model", "kept": 41, "removed": 0},
    ]
    assert facts["left_out"] == {"max_turns": 1}


def test_each_filter_says_what_it_removed(reader: Reader, tmp_path: Path) -> None:
    first = next(reader.trajectories())
    rules = (Length(max_turns=2), NearDuplicates(0.95))
    plan = ExportPlan(
        FORMATS["sharegpt"],
        tmp_path / "data.jsonl",
        TrajectorySelection(where=(parse(f"id!={first.header.id}"),), rules=rules),
    )
    report = export(reader, plan)
    removed = lines(tmp_path / "data.removed.jsonl")
    assert {"id": first.header.id, "rule": "where", "why": f"not id!={first.header.id}"} in removed
    assert len(removed) == report.left_out.total() == 41 - report.rows
    assert report.facts["filters"]["rules"] == [
        {"rule": "length", "max_turns": 2},
        {"rule": "near-duplicate", "threshold": 0.95},
    ]


def test_every_stage_of_the_funnel_is_counted(db: Path, tmp_path: Path) -> None:
    with Writer(db) as writer, Reader(db) as reader:
        for number, trajectory in enumerate(list(reader.trajectories())[:10]):
            writer.add_reward(Reward(trajectory.header.id, float(number), "test")).result()
    with Reader(db) as reader:
        which = Filter(stop_reason="completed", min_reward=4.0)
        report = export(
            reader, ExportPlan(FORMATS["sharegpt"], tmp_path / "data.jsonl", TrajectorySelection(which))
        )
    assert report.rows == 6
    assert [(s["filter"], s["kept"], s.get("removed")) for s in report.facts["filters"]["stages"]] == [
        ("in the store", 41, None),
        ("stop_reason", 40, 1),
        ("min_reward", 6, 34),
    ]


def test_tries_at_one_task_fall_on_the_same_side(db: Path, tmp_path: Path) -> None:
    with Writer(db) as writer:
        for number in range(60):
            records.record(
                writer, records.conversation(f"Task {number % 15}?", str(number)), task_id=f"t{number % 15}"
            )
    with Reader(db) as reader:
        report = export(reader, ExportPlan(FORMATS["messages"], tmp_path / "d.jsonl", eval_share=0.3))
    train, eval_ = lines(tmp_path / "d.train.jsonl"), lines(tmp_path / "d.eval.jsonl")
    assert len(train) + len(eval_) == report.rows == 100
    sides = [{row["task_id"] for row in rows if row["task_id"]} for rows in (train, eval_)]
    assert sides[0] and sides[1]
    assert not sides[0] & sides[1]
    assert [file["split"] for file in report.facts["files"]] == ["train", "eval"]


@pytest.mark.parametrize("name", ["functions.search", "read file", "a" * 65, "größe", ""])
@pytest.mark.parametrize("offered", [True, False])
def test_tool_names_that_openai_refuses_are_left_out_with_the_reason(
    tmp_path: Path, name: str, offered: bool
) -> None:
    call = ToolCall("c", "calculator" if offered else name, "{}")
    turns = [Message.user("Go."), Message.assistant(tool_calls=(call,)), Message.tool(call, "4")]
    schema = {"name": name if offered else "calculator", "description": "", "parameters": {"type": "object"}}
    with Writer(tmp_path / "a.db") as writer:
        records.record(writer, [*turns, Message.assistant("Done.")], tools=(schema,))
    with Reader(tmp_path / "a.db") as reader:
        report = export(reader, ExportPlan(FORMATS["openai-finetune"], tmp_path / "rows.jsonl"))
    assert report.rows == 0
    assert report.left_out == {f"OpenAI accepts no tool of the name '{name}'": 1}


def test_a_preview_shows_rows_and_writes_nothing(reader: Reader, tmp_path: Path) -> None:
    rows, _ = preview(reader, ExportPlan(FORMATS["trl-sft"], tmp_path / "data.jsonl"), 2)
    assert [row["messages"][1]["content"] for row in rows] == ["What is 0 + 1?", "What is 1 + 1?"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("data")] == []


def test_compressed_versions_are_taken_only_when_asked_for(db: Path, tmp_path: Path) -> None:
    with Reader(db) as reader:
        original = next(reader.trajectories()).header.id
    with Writer(db) as writer:
        writer.add_reward(Reward(original, 0.5, "test"))
        for text in ("older", "newest"):
            said = [Message.user("What is 0 + 1?"), Message.assistant(text)]
            records.record(writer, said, parent_id=original, relation=Relation.COMPRESSED)
    with Reader(db) as reader:
        plan = ExportPlan(FORMATS["messages"], tmp_path / "d.jsonl")
        report = export(reader, plan)
        assert report.rows == 40
        assert report.left_out["a compressed version; --compressed takes it"] == 2
        export(reader, replace(plan, selection=TrajectorySelection(Filter(min_reward=0.5), compressed=True)))
    (row,) = lines(tmp_path / "d.jsonl")
    assert row["messages"][-1]["content"] == "newest"  # type: ignore[index]
    assert row["reward"] == 0.5


def test_secrets_are_redacted_reported_and_their_tokens_withheld(tmp_path: Path) -> None:
    hidden = "Zq93kfLs02mXyzAb"
    token = "ghp_" + "a1B2c3D4e5F6" * 3
    with Writer(tmp_path / "s.db") as writer:
        records.record(writer, [Message.user(f"use {hidden} now"), Message.assistant("ok")])
        records.record(writer, [Message.user(f"DB_PASSWORD={hidden[::-1]}"), Message.assistant(token)])
        records.record(writer, [Message.user("nothing here"), Message.assistant("ok")])
    known = Redactor({"MY_KEY": hidden})
    with Reader(tmp_path / "s.db") as reader:
        plan = ExportPlan(FORMATS["messages"], tmp_path / "d.jsonl")
        report = export(reader, plan, known)
        text = (tmp_path / "d.jsonl").read_text()
        export(reader, replace(plan, level=RedactionLevel.KNOWN), known)
        weaker = (tmp_path / "d.jsonl").read_text()
        export(reader, replace(plan, level=RedactionLevel.NONE), known)
        raw = (tmp_path / "d.jsonl").read_text()
    assert report.facts["redaction"] == {
        "level": "shapes",
        "trajectories": 2,
        "hits": {"known:MY_KEY": 1, "names:named": 1, "shapes:github-token": 1},
    }
    assert not any(secret in text for secret in (hidden, hidden[::-1], token))
    assert hidden not in weaker
    assert token in weaker
    assert hidden in raw


def test_a_target_that_says_nothing_about_its_kind_is_refused(reader: Reader, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not say which kind of file"):
        export(reader, ExportPlan(FORMATS["messages"], tmp_path / "data"))
    (tmp_path / "d.jsonl").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        export(reader, ExportPlan(FORMATS["messages"], tmp_path / "d.jsonl"))


def test_traces_are_a_folder_that_is_replaced_whole(reader: Reader, tmp_path: Path) -> None:
    folder = tmp_path / "traces"
    for which in (Filter(), Filter(text="39")):
        report = export(reader, ExportPlan(FORMATS["sts"], folder, TrajectorySelection(which)))
    assert len(list(folder.iterdir())) == report.rows < 40
    first, *rest = lines(next(folder.iterdir()))
    assert (first["type"], first["harness"]) == ("session", "hermes")
    assert {line["type"] for line in rest} == {"message"}
    assert sorted(path.name for path in tmp_path.iterdir() if "traces" in path.name) == [
        "traces",
        "traces.manifest.json",
    ]


def test_what_a_killed_export_left_beside_its_target_is_removed_by_the_next(
    reader: Reader, tmp_path: Path
) -> None:
    target = tmp_path / "out" / "data.jsonl"
    target.parent.mkdir()
    for name in ("data.jsonl", "data.manifest.json", "data.removed.jsonl"):
        (target.parent / f".{name}.abcd1234").write_text("half")
    export(reader, ExportPlan(FORMATS["messages"], target))
    assert not [path.name for path in target.parent.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize("ending", [".jsonl", pytest.param(".parquet", marks=pytest.mark.slow)])
def test_a_killed_export_leaves_the_target_absent_old_or_complete(
    db: Path, tmp_path: Path, ending: str
) -> None:
    kill_often(db, tmp_path, ending, 4)


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ending", [".jsonl", ".parquet"])
def test_fifty_killed_exports_leave_the_target_absent_old_or_complete(
    db: Path, tmp_path: Path, ending: str
) -> None:
    kill_often(db, tmp_path, ending, 50)


def kill_often(db: Path, tmp_path: Path, ending: str, rounds: int) -> None:
    with Writer(db) as writer:
        for number in range(60):
            records.record(writer, records.conversation(f"Question {number}", "word " * 20_000))
    target = tmp_path / "out" / f"data{ending}"
    command = [sys.executable, "-c", RUN, str(db), "messages", str(target)]
    assert subprocess.run(command, capture_output=True).returncode == 0
    complete = target.read_bytes()
    typical_s = run_for(command, None)
    draw = random.Random(7)
    for _ in range(rounds):
        before = draw.choice([None, b"old", complete])
        target.unlink(missing_ok=True)
        if before is not None:
            target.write_bytes(before)
        run_for(command, draw.random() * typical_s)
        after = target.read_bytes() if target.exists() else None
        assert after in (before, complete)
        if after == complete and ending == ".parquet":
            assert pyarrow.parquet.read_table(target).num_rows == 100
    assert subprocess.run(command, capture_output=True).returncode == 0
    assert target.read_bytes() == complete
    assert {path.name for path in target.parent.iterdir()} == {
        target.name,
        "data.manifest.json",
        "data.removed.jsonl",
    }


def run_for(command: list[str], kill_after_s: float | None) -> float:
    """Seconds from where the export begins to its end, or to where it was killed."""
    with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        started = time.monotonic()
        if kill_after_s is not None:
            time.sleep(kill_after_s)
            child.send_signal(signal.SIGKILL)
        child.wait()
    return time.monotonic() - started


@pytest.mark.parametrize(
    "ending", [".jsonl", *(pytest.param(ending, marks=pytest.mark.slow) for ending in (".parquet", ".arrow"))]
)
def test_a_full_disk_keeps_what_was_there_and_says_so(db: Path, small_disk: Path, ending: str) -> None:
    rng = random.Random(1)
    with Writer(db) as writer:
        for _ in range(30):
            noise = "".join(chr(rng.randrange(0x4E00, 0x9FFF)) for _ in range(30_000))
            records.record(writer, [Message.user("q"), Message.assistant(noise)])
    target = small_disk / f"data{ending}"
    target.write_bytes(b"old")
    with Reader(db) as reader, pytest.raises(HermesError, match=f"cannot write {target}: No space left"):
        export(reader, ExportPlan(FORMATS["messages"], target))
    assert target.read_bytes() == b"old"
    assert [path.name for path in small_disk.iterdir()] == [target.name]


@pytest.mark.parametrize(("form", "name"), [("messages", "data.jsonl"), ("sts", "data")])
def test_exports_to_one_place_do_not_disturb_each_other(
    db: Path, tmp_path: Path, form: str, name: str
) -> None:
    target = tmp_path / name
    often = RUN.replace("    export", "    for _ in range(15): export")
    command = [sys.executable, "-c", often, str(db), form, str(target)]
    children = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for _ in range(3)]
    assert [child.wait() for child in children] == [0, 0, 0]
    assert len(lines(target) if target.is_file() else list(target.iterdir())) == 40
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".data")]


def test_a_condition_on_metadata_means_the_same_in_sql(tmp_path: Path) -> None:
    values = (None, True, False, 0, 1, 2.5, "1", "true", "Ärger")
    with Writer(tmp_path / "hermes.db") as writer:
        for value in values:
            records.record(writer, records.conversation(), metadata={"x": value})
    texts = [f"metadata.x{sign}{number}" for sign in ("=", "!=", "<", ">=", "~") for number in range(3)]
    texts += [f"metadata.x{sign}{word}" for sign in ("=", "!=", "~") for word in ("true", "är")]
    with Reader(tmp_path / "hermes.db") as reader:
        examples = [load(reader, trajectory) for trajectory in reader.trajectories()]
        for condition in map(parse, texts):
            failing = {example.id for example in examples if not condition.holds(example)}
            assert set(reader.failing_ids(condition.sql)) == failing, condition.text
