"""The whole record: store → JSONL → another store → JSONL is the same to the byte, whatever the record."""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from hermes.core import (
    Boundary,
    JSONObject,
    Message,
    Outcome,
    Rating,
    RatingKind,
    Relation,
    Reward,
    StopReason,
    TokenTrace,
)
from hermes.data.export.run import ExportPlan, ExportReport, export
from hermes.data.export.select import TrajectorySelection
from hermes.data.formats.record import FORMAT, to_row
from hermes.data.importing import Imported, import_files
from hermes.data.redaction.redact import RedactionLevel
from hermes.errors import UsageError
from hermes.store import Reader, Record, Writer
from tests import records
from tests.cli.process import hermes
from tests.data.formats.made_records import whole_records


def copy_out(db: Path, output: Path, level: RedactionLevel = RedactionLevel.NONE) -> ExportReport:
    with Reader(db) as reader:
        return export(
            reader, ExportPlan(FORMAT, output, TrajectorySelection(only_completed=False), level=level)
        )


def bring(db: Path, *paths: Path, **known: Any) -> Imported:
    with Writer(db) as writer, Reader(db) as reader:
        return import_files(list(paths), reader, writer, **known)


def check_copies(folder: Path, given_records: list[Record]) -> None:
    """One store, a file of it, another store of that, and a file of that one."""
    with Writer(folder / "one.db") as writer:
        for record in given_records:
            writer.restore(record).result()
    copy_out(folder / "one.db", folder / "one.jsonl")
    done = bring(folder / "two.db", folder / "one.jsonl")
    assert (done.rows, done.known, done.problems) == (len(given_records), 0, [])
    copy_out(folder / "two.db", folder / "two.jsonl")
    assert (folder / "one.jsonl").read_bytes() == (folder / "two.jsonl").read_bytes()
    with Reader(folder / "two.db") as reader:
        assert [reader.record(each) for each in reader.trajectories()] == given_records
    again = bring(folder / "two.db", folder / "one.jsonl")
    assert (again.rows, again.known, again.problems) == (0, len(given_records), [])


def gathered(count: int) -> list[Record]:
    """So many random records; a list of them as one example is larger than hypothesis draws."""
    found: list[Record] = []

    @given(record=whole_records())
    @settings(
        max_examples=count,
        phases=[Phase.generate],
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    def gather(record: Record) -> None:
        found.append(record)

    gather()
    assert len(found) == count
    return found


def test_another_store_gets_the_same_records(tmp_path: Path) -> None:
    check_copies(tmp_path, gathered(40))


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_another_store_gets_the_same_two_thousand_records(tmp_path: Path) -> None:
    for number in range(10):
        folder = tmp_path / str(number)
        folder.mkdir()
        check_copies(folder, gathered(200))


@pytest.fixture
def recorded(tmp_path: Path) -> Path:
    """A store as the agent leaves it: an ephemeral input, tokens, verdicts, one trajectory out of another."""
    db = tmp_path / "hermes.db"
    trace = TokenTrace((1, 2), (3, 4), (-0.5, -math.inf), "step-3")
    call = records.model_call(raw={"id": "x", "choices": [1.5]}, tokens=trace)
    with Writer(db) as writer:
        first = records.record(writer, records.conversation(), call=call, config={"seed": 7})
        records.record(
            writer,
            records.conversation("shorter"),
            parent_id=first,
            relation=Relation.COMPRESSED,
            metadata={"compression": {"map": []}},
        )
        records.record(writer, [Message.user("hello?")], outcome=Outcome(StopReason.ERROR, Boundary.PROVIDER))
        records.record(writer, records.conversation("still running"), outcome=None)
        writer.add_reward(Reward(first, 0.5, "judge", {"why": "good"}, 3))
        writer.add_rating(Rating("R1", first, RatingKind.SCORE, 2.0, "ann", 4))
        writer.add_rating(Rating("R2", first, RatingKind.SCORE, 5.0, "ann", 5, replaces="R1")).result()
    return db


def test_every_finished_trajectory_is_taken_with_its_versions_and_withdrawn_ratings(
    recorded: Path, tmp_path: Path
) -> None:
    report = copy_out(recorded, tmp_path / "all.jsonl")
    assert (report.rows, dict(report.left_out)) == (3, {"still running": 1})
    assert bring(tmp_path / "other.db", tmp_path / "all.jsonl").rows == 3
    with Reader(tmp_path / "other.db") as reader:
        first, compressed, failed = reader.trajectories()
        assert compressed.header.parent_id == first.header.id
        assert failed.messages == (Message.user("hello?"),)
        record = reader.record(first)
        assert [rating.id for rating in record.ratings] == ["R1", "R2"]
        assert [rating.id for rating in reader.ratings(first.header.id)] == ["R2"]
        assert reader.summaries()[-1].rating == 5.0
        call = first.steps[2].call
        assert call is not None and call.raw == {"id": "x", "choices": [1.5]}
        assert call.tokens is not None and call.tokens.logprobs == (-0.5, -math.inf)
        messages, tools = reader.model_input(first.header.id, first.steps[2])
        assert (list(messages), list(tools)) == (records.conversation()[:2], list(records.TOOLS))


def test_every_column_of_both_stores_is_the_same_but_for_the_recording_process(
    recorded: Path, tmp_path: Path
) -> None:
    copy_out(recorded, tmp_path / "all.jsonl")
    bring(tmp_path / "other.db", tmp_path / "all.jsonl")
    finished = "trajectory IN (SELECT trajectory FROM outcomes)"
    for table, columns, condition in (
        ("trajectories", "*", "seq IN (SELECT trajectory FROM outcomes)"),
        ("steps", "trajectory, idx, kind, started_at_ms, ephemeral, tool, ok, body, raw", finished),
        ("token_traces", "prompt_ids, sampled_ids, logprobs, policy_version", "TRUE"),
        ("outcomes", "*", "TRUE"),
        ("rewards", "*", "TRUE"),
        ("ratings", "*", "TRUE"),
    ):
        query = f"SELECT {columns} FROM {table} WHERE {condition}"
        one, two = (_rows(db, query) for db in (recorded, tmp_path / "other.db"))
        assert one == two, table
        assert one, table


def _rows(db: Path, query: str) -> list[dict[str, Any]]:
    with sqlite3.connect(db) as connection:
        connection.row_factory = sqlite3.Row
        found = [dict(row) for row in connection.execute(query)]
    return [{name: value for name, value in row.items() if name != "owner"} for row in found]


@pytest.mark.parametrize("ending", [".parquet", ".jsonl"])
def test_a_table_holds_the_records_too(recorded: Path, tmp_path: Path, ending: str) -> None:
    odd = Message.user("half a pair: \ud83d")
    with Writer(recorded) as writer:
        records.record(writer, [odd, Message.assistant("\udc00")])
    copy_out(recorded, tmp_path / f"all{ending}")
    assert bring(tmp_path / "other.db", tmp_path / f"all{ending}").rows == 4
    copy_out(recorded, tmp_path / "one.jsonl")
    copy_out(tmp_path / "other.db", tmp_path / "two.jsonl")
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()


def test_another_record_under_a_known_id_is_refused_and_the_others_are_stored(
    recorded: Path, tmp_path: Path
) -> None:
    copy_out(recorded, tmp_path / "all.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "all.jsonl").read_text().splitlines()]
    rows[0]["header"]["model"] = "another"
    rows[0]["ratings"].pop()
    rows[1]["header"]["id"] = "01NEW"
    path = tmp_path / "changed.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    done = bring(recorded, path)
    assert (done.rows, done.known) == (1, 1)
    (problem,) = done.problems
    assert problem.line == 1
    assert problem.why == (
        f"trajectory {rows[0]['header']['id']} is in the store and differs in: header, ratings"
    )
    with Reader(recorded) as reader:
        assert reader.get(rows[0]["header"]["id"]).header.model == "test/model"


def change_version(row: JSONObject) -> None:
    row["record_version"] = 2


def change_field(row: JSONObject) -> None:
    row["messages"][0]["mood"] = "good"


def change_type(row: JSONObject) -> None:
    row["messages"][0]["content"] = 5


def change_call(row: JSONObject) -> None:
    row["steps"][2]["call"]["latency_ms"] = "fast"


def change_position(row: JSONObject) -> None:
    row["steps"][1]["message"] = -1


def change_span(row: JSONObject) -> None:
    row["steps"][2]["context"] = [[0, 900]]


def change_kind(row: JSONObject) -> None:
    row["steps"][0]["kind"] = "tool"


def change_id(row: JSONObject) -> None:
    row["steps"][2]["call"]["tokens"]["sampled_ids"][0] = 2**40


def change_outcome(row: JSONObject) -> None:
    row["outcome"] = None


def change_order(row: JSONObject) -> None:
    row["steps"].reverse()


def change_text(row: JSONObject) -> None:
    row["header"]["model"] = "\ud800"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (change_version, "record_version is 2; this version of Hermes reads 1"),
        (change_field, "messages: not as a record of version 1 has it"),
        (change_type, "steps[0].message.content is int"),
        (change_call, "steps[2].call.latency_ms is str"),
        (change_position, "position -1 of"),
        (change_span, "position 899 of"),
        (change_kind, "step 0 is a tool step"),
        (change_id, "step 2 has a token id"),
        (change_outcome, "'outcome' is NoneType"),
        (change_order, "the steps' indices do not rise"),
        (change_text, "cannot be stored: 'utf-8' codec can't encode"),
    ],
)
def test_a_row_that_is_no_record_is_refused_with_the_place(
    recorded: Path, tmp_path: Path, change: Callable[[JSONObject], None], why: str
) -> None:
    copy_out(recorded, tmp_path / "all.jsonl")
    row = json.loads((tmp_path / "all.jsonl").read_text().splitlines()[0])
    change(row)
    (tmp_path / "bad.jsonl").write_text(json.dumps(row) + "\n")
    done = bring(tmp_path / "other.db", tmp_path / "bad.jsonl")
    assert (done.rows, done.known) == (0, 0)
    (problem,) = done.problems
    assert why in problem.why
    with Reader(tmp_path / "other.db") as reader:
        assert reader.count() == 0


def test_a_record_that_fails_halfway_leaves_nothing(recorded: Path, tmp_path: Path) -> None:
    with Reader(recorded) as reader:
        record = reader.record(next(iter(reader.trajectories())))
    contradicting = replace(record.ratings[0], value=-record.ratings[0].value, comment="another event")
    twice = replace(record, ratings=(record.ratings[0], contradicting))
    with Writer(tmp_path / "other.db") as writer:
        with pytest.raises(UsageError, match="stored already, with another content"):
            writer.restore(twice).result()
        writer.restore(record).result()
    with Reader(tmp_path / "other.db") as reader:
        assert reader.record(reader.get(record.trajectory.header.id)) == record


def test_secrets_are_taken_out_of_raw_replies_and_settings_too(tmp_path: Path) -> None:
    secret = "ghp_" + "a1B2c3D4e5" * 4
    trace = TokenTrace((1,), (2,), (-0.5,), None)
    call = records.model_call(raw={"echo": secret}, tokens=trace)
    with Writer(tmp_path / "hermes.db") as writer:
        records.record(writer, records.conversation(), call=call, config={"env": f"TOKEN={secret}"})
    report = copy_out(tmp_path / "hermes.db", tmp_path / "all.jsonl", RedactionLevel.SHAPES)
    text = (tmp_path / "all.jsonl").read_text()
    assert secret not in text
    assert report.facts["redaction"]["trajectories"] == 1
    kept = [step["call"] for step in json.loads(text)["steps"] if "call" in step]
    assert {(call["tokens"], call["tokens_withheld"]) for call in kept} == {(None, "redacted")}
    assert bring(tmp_path / "other.db", tmp_path / "all.jsonl").rows == 1


def test_a_context_that_grew_by_appending_is_one_span(recorded: Path) -> None:
    with Reader(recorded) as reader:
        row = to_row(reader.record(next(iter(reader.trajectories()))))
    assert [step["context"] for step in row["steps"] if "context" in step] == [[[0, 2]], [[0, 4]]]
    assert len(row["messages"]) == 5
    assert len(row["tool_schemas"]) == 1


def test_the_commands_carry_records_from_one_home_to_another(recorded: Path, tmp_path: Path) -> None:
    one, two = tmp_path, tmp_path / "two"
    file = tmp_path / "all.jsonl"
    flags = ("--format", "record", "--all", "--output", str(file))
    done = hermes(one, "export", *flags)
    assert done.returncode == 0, done.stderr
    brought = json.loads(hermes(two, "import", str(file), "--json").stdout)
    assert (brought["rows"], brought["known"]) == (3, 0)
    first = file.read_bytes()
    assert hermes(two, "export", *flags).returncode == 0
    assert file.read_bytes() == first
    refused = hermes(two, "import", str(file), "--run", "mine")
    assert refused.returncode == 1
    assert "a whole record keeps the run it is of" in refused.stderr
