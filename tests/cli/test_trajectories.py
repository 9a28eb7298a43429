"""`hermes trajectories`, `rate` and `export` over a store with known content."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.core import Boundary, Message, Outcome, Source, StopReason, ToolCall
from hermes.models.parsers import get_parser
from hermes.store import Writer
from tests import records
from tests.cli.process import hermes


@pytest.fixture
def home(tmp_path: Path) -> Path:
    with Writer(tmp_path / "hermes.db") as writer:
        records.record(writer, records.conversation("What is 2 + 2?", "It is 4."))
        records.record(
            writer,
            records.conversation("What is 2 + 2?", "Four, I think."),
            failed_tools=True,
            model="b/other",
        )
        failed = Outcome(StopReason.ERROR, Boundary.PROVIDER, "AuthError", "401 from the server")
        records.record(writer, [Message.user("Never answered.")], outcome=failed)
    return tmp_path


def rows(home: Path, *arguments: str) -> list[dict[str, object]]:
    done = hermes(home, "trajectories", "list", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, list)
    return found


def test_list_prints_one_json_array_newest_first(home: Path) -> None:
    assert [row["stop_reason"] for row in rows(home)] == ["error", "completed", "completed"]
    assert len(rows(home, "--outcome", "completed")) == 2
    assert len(rows(home, "--model", "b/other", "--tool", "calculator")) == 1
    assert len(rows(home, "--since", "1h")) == 0
    assert len(rows(home, "--until", "2023-12-01")) == 3
    assert len(rows(home, "--limit", "1")) == 1


def test_a_name_that_no_trajectory_has_is_answered_with_the_nearest(home: Path) -> None:
    for arguments, line in (
        (("--model", "b/othr"), "no trajectory has the model 'b/othr'; did you mean b/other?"),
        (("--tool", "calculater"), "no trajectory has the tool 'calculater'; did you mean calculator?"),
        (("--run", "first"), "no trajectory has the run 'first'"),
    ):
        done = hermes(home, "trajectories", "list", "--json", *arguments)
        assert done.returncode == 0 and done.stdout.strip() == "[]"
        assert done.stderr.strip() == line
    done = hermes(home, "export", "--tool", "calculater", "--output", str(home / "rows.jsonl"))
    assert done.returncode == 2 and "did you mean calculator?" in done.stderr
    assert not (home / "rows.jsonl").exists()


def test_list_is_a_readable_table(home: Path) -> None:
    text = hermes(home, "trajectories", "list").stdout
    assert "What is 2 + 2?" in text
    assert "b/other" in text
    assert "1 (1 failed)" in text


def test_rollouts_of_training_are_listed_when_they_are_asked_for(home: Path) -> None:
    with Writer(home / "hermes.db") as writer:
        trained = [
            records.record(writer, [Message.user("Add.")], source=Source.ENV, run_id="r") for _ in range(3)
        ]
    for filters in (("--source", "env"), ("--run", "r")):
        assert {row["id"] for row in rows(home, *filters)} == set(trained), filters
    assert len(rows(home)) == 6 and {row["id"] for row in rows(home)} > set(trained)
    text = hermes(home, "trajectories", "list").stdout
    assert len(text.splitlines()) == 5 and "Add." not in text
    assert text.splitlines()[-1] == "left out: 3 rollouts of training; --source env lists them"
    assert "left out" not in hermes(home, "trajectories", "list", "--source", "env").stdout


def test_an_empty_store_says_what_to_do(tmp_path: Path) -> None:
    done = hermes(tmp_path, "trajectories", "list")
    assert done.returncode == 0
    assert "nothing recorded yet" in done.stdout
    assert rows(tmp_path) == []


def test_show_renders_calls_results_and_thinking(home: Path) -> None:
    oldest = str(rows(home)[-1]["id"])
    text = hermes(home, "trajectories", "show", oldest[-8:]).stdout
    for part in (
        "What is 2 + 2?",
        "(thinking) A sum.",
        'calculator(expression="2 + 2")',
        "calculator: ok",
        "It is 4.",
        "completed",
    ):
        assert part in text, part


def test_show_json_with_raw_has_what_the_model_saw(home: Path) -> None:
    oldest = str(rows(home)[-1]["id"])
    record = json.loads(hermes(home, "trajectories", "show", oldest, "--json", "--raw").stdout)
    model_step = next(step for step in record["steps"] if step["kind"] == "model")
    assert [message["role"] for message in model_step["input"]["messages"]] == ["system", "user"]
    assert model_step["input"]["tools"][0]["name"] == "calculator"


def test_search_stats_and_diff(home: Path) -> None:
    hits = json.loads(hermes(home, "trajectories", "search", "Four", "--json").stdout)
    assert [hit["role"] for hit in hits] == ["assistant"]
    stats = json.loads(hermes(home, "trajectories", "stats", "--json").stdout)
    assert stats["by_stop_reason"] == {"completed": 2, "error": 1}
    assert "calculator" in hermes(home, "trajectories", "stats").stdout
    ids = [str(row["id"]) for row in rows(home)]
    text = hermes(home, "trajectories", "diff", ids[2], ids[1]).stdout
    assert "the first 4 messages are equal" in text
    assert "-It is 4." in text
    assert "+Four, I think." in text
    assert "equal: 5 messages" in hermes(home, "trajectories", "diff", ids[2], ids[2]).stdout


def test_a_rating_is_stored_and_can_be_filtered_on(home: Path) -> None:
    oldest = str(rows(home)[-1]["id"])
    assert hermes(home, "rate", oldest, "good", "--comment", "clear").returncode == 0
    assert [row["id"] for row in rows(home, "--min-rating", "4")] == [oldest]
    assert hermes(home, "rate", oldest, "2").returncode == 0
    assert rows(home, "--min-rating", "4") == []
    assert hermes(home, "rate", oldest, "9").returncode == 2
    assert hermes(home, "rate", "nothing-like-it", "good").returncode == 2


def test_export_writes_sharegpt_that_our_parser_reads_back(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "data.jsonl"
    done = hermes(home, "export", "--format", "sharegpt", "--output", str(target), "--json")
    assert json.loads(done.stdout)["left_out"] == {"the model never answered": 1}
    written = [json.loads(line) for line in target.read_text("utf-8").splitlines()]
    assert len(written) == 2
    turns = written[0]["conversations"]
    assert [turn["from"] for turn in turns] == ["system", "human", "gpt", "tool", "gpt"]
    assert turns[0]["value"].startswith("You are helpful.")
    assert '"name": "calculator"' in turns[0]["value"] or '"name":"calculator"' in turns[0]["value"]
    parsed = get_parser("hermes").parse(turns[2]["value"])
    assert parsed.reasoning == "A sum."
    assert parsed.content.strip() == "Let me see."
    assert [(call.name, json.loads(call.arguments)) for call in parsed.tool_calls] == [
        ("calculator", {"expression": "2 + 2"})
    ]
    assert '"tool_call_id": "call_1"' in turns[3]["value"]
    again = tmp_path / "again.jsonl"
    hermes(home, "export", "--output", str(again))
    assert again.read_bytes() == target.read_bytes()


def test_export_maps_role_names_and_can_include_everything(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "data.jsonl"
    hermes(home, "export", "--output", str(target), "--roles", "user-assistant", "--all")
    written = [json.loads(line) for line in target.read_text("utf-8").splitlines()]
    assert {turn["from"] for turn in written[0]["conversations"]} == {"system", "user", "assistant", "tool"}


def test_export_to_an_impossible_place_fails_cleanly(home: Path) -> None:
    done = hermes(home, "export", "--output", "/proc/nowhere/data.jsonl")
    assert done.returncode == 1
    assert "cannot write /proc/nowhere/data.jsonl" in done.stderr
    assert "Traceback" not in done.stderr


def test_stored_control_characters_are_made_harmless(tmp_path: Path) -> None:
    call = ToolCall("c", "terminal", json.dumps({"command": "\x1b]0;owned\x07"}))
    nasty = "\x1b[2J\x1b[31mred\x07 \u202e reversed"
    with Writer(tmp_path / "hermes.db") as writer:
        records.record(
            writer,
            [Message.user(nasty), Message.assistant(nasty, tool_calls=(call,)), Message.tool(call, nasty)],
        )
    for arguments in (("list",), ("show",), ("search", "red")):
        out = hermes(tmp_path, "trajectories", *arguments).stdout
        assert out
        assert not any(character in out for character in "\x1b\x07\u202e"), arguments


def test_a_deletion_is_confirmed_names_the_copies_and_is_for_good(home: Path, tmp_path: Path) -> None:
    exported = tmp_path / "copy.jsonl"
    hermes(home, "export", "--output", str(exported))
    oldest = str(rows(home)[-1]["id"])
    refused = hermes(home, "trajectories", "delete", oldest)
    assert refused.returncode == 2
    assert "nothing was deleted" in refused.stderr and "--yes" in refused.stderr
    assert str(exported) in refused.stdout
    assert len(rows(home)) == 3
    done = hermes(home, "trajectories", "delete", oldest, "--yes", "--json")
    facts = json.loads(done.stdout)
    assert facts["deleted"]["trajectories"] == 1
    assert facts["exports"] == [str(exported)]
    assert oldest not in [row["id"] for row in rows(home)]
    assert hermes(home, "trajectories", "delete", "--source", "batch", "--yes").stdout == "nothing matches\n"
    assert "no damage" in hermes(home, "store", "check").stdout


def test_what_was_recorded_is_scored_again(home: Path, tmp_path: Path) -> None:
    grader = tmp_path / "grader.py"
    grader.write_text(
        "def good(ctx):\n    return float('4' in ctx.answer)\ndef bad(ctx):\n    return ctx.answer['x']\n"
    )
    report = json.loads(hermes(home, "trajectories", "score", "--reward", f"{grader}:good", "--json").stdout)
    assert sorted(report["rewards"].values()) == [0.0, 1.0]
    assert (report["mean_reward"], report["skipped"]) == (0.5, 1), "what infrastructure ended has no score"
    assert len(rows(home, "--min-reward", "1")) == 1
    failing = hermes(home, "trajectories", "score", "--reward", f"{grader}:bad")
    assert failing.returncode == 1
    assert "2 by TypeError (the reward function failed)" in failing.stdout


def test_a_full_device_is_reported_in_two_lines(home: Path) -> None:
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "hermes", "trajectories", "list"],
            env={**os.environ, "HERMES_HOME": str(home)},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr.startswith("error: the output cannot be written")
    assert "Traceback" not in done.stderr
