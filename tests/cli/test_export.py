"""`hermes export`, `hermes trajectories redact` and pushing, as commands over a store with known content."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.core import Message, ToolCall
from hermes.store import Writer
from tests import records
from tests.cli.process import failure, hermes
from tests.fakes.hub import Hub, serve_hub

TOKEN = "hf_" + "abcDEF0123456789" * 2
PLANTED = "ghp_" + "Zz9Yy8Xx7Ww6" * 3


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    with Writer(home / "hermes.db") as writer:
        for number in range(4):
            records.record(
                writer,
                records.conversation("What is 2 + 2, and why is that the answer?", f"It is {number}."),
                failed_tools=number == 3,
                task_id="sum",
                metadata={"n": number},
            )
    return home


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve_hub(TOKEN) as running:
        yield running


def plant(home: Path) -> None:
    call = ToolCall("c", "terminal", json.dumps({"command": f"git clone https://x:{PLANTED}@h/r"}))
    with Writer(home / "hermes.db") as writer:
        records.record(
            writer,
            [
                Message.user("clone"),
                Message.assistant("", tool_calls=(call,)),
                Message.tool(call, "ok"),
                Message.assistant("done"),
            ],
        )


def lines(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text("utf-8").splitlines()]


def test_formats_are_listed_with_what_they_keep(home: Path) -> None:
    text = hermes(home, "export", "--formats").stdout
    listed = json.loads(hermes(home, "export", "--formats", "--json").stdout)
    assert {each["name"] for each in listed} >= {"sharegpt", "messages", "trl-sft", "atif", "sts", "tokens"}
    assert all(each["keeps"] and each["loses"] and each["name"] in text for each in listed)


def test_filters_split_and_rules_come_together_in_one_command(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "out.jsonl"
    done = hermes(
        home,
        *("export", "--format", "messages", "--output", str(target), "--json", "--split", "0.5"),
        *("--where", "metadata.n!=1", "--min-tool-success", "0.5", "--language", "en"),
        *("--near-duplicates", "0.99"),
    )
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["left_out"] == {"not metadata.n!=1": 1, "tool-success": 1}
    assert facts["rows"] == 2
    sides = [lines(tmp_path / f"out.{side}.jsonl") for side in ("train", "eval")]
    assert sorted(map(len, sides)) == [0, 2]  # one task, one side
    assert json.loads((tmp_path / "out.manifest.json").read_text())["rows"] == 2


def test_picked_trajectories_are_exported_and_no_other(home: Path, tmp_path: Path) -> None:
    """By id, by its end, by 'last'; named twice is one row; other conditions hold too."""
    last, _, second, first = [
        row["id"] for row in json.loads(hermes(home, "trajectories", "list", "--json").stdout)
    ]
    target = tmp_path / "picked.jsonl"
    picked = ("--id", first, "--id", second[-8:].lower(), "--id", "last", "--id", first)
    done = hermes(home, "export", "--format", "messages", *picked, "--output", str(target))
    assert done.returncode == 0, done.stderr
    assert [row["id"] for row in lines(target)] == [first, second, last]
    funnel = json.loads((tmp_path / "picked.manifest.json").read_text())["filters"]["stages"]
    assert {"filter": "ids", "value": [first, second, last], "kept": 3, "removed": 1} in funnel
    less = hermes(home, "export", "--json", "--preview", *picked, "--where", "metadata.n=0")
    assert len(json.loads(less.stdout)["rows"]) == 1


def test_a_preview_prints_rows_and_writes_nothing(home: Path, tmp_path: Path) -> None:
    text = hermes(home, "export", "--format", "trl-sft", "--preview").stdout
    assert "What is 2 + 2" in text
    assert "nothing was written" in text
    rows = json.loads(hermes(home, "export", "--format", "atif", "--preview", "--json").stdout)["rows"]
    assert len(rows) == 3
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


def test_preferences_are_exported_from_ratings(home: Path, tmp_path: Path) -> None:
    ids = [row["id"] for row in json.loads(hermes(home, "trajectories", "list", "--json").stdout)]
    for trajectory, verdict in zip(ids, ("5", "1", "good"), strict=False):
        assert hermes(home, "rate", trajectory, verdict).returncode == 0
    target = tmp_path / "pairs.jsonl"
    hermes(home, "export", "--format", "trl-preference", "--pairs-from", "rating", "--output", str(target))
    rows = lines(target)
    assert {(row["chosen_id"], row["rejected_id"]) for row in rows} == {(ids[0], ids[1]), (ids[2], ids[1])}
    assert all(row["origin"] == "rating" and row["divergence_step"] == 4 for row in rows)


@pytest.mark.parametrize(
    ("recipe", "config", "command"),
    [
        ("axolotl", "d.axolotl.yml", "axolotl train"),
        ("unsloth", "d.unsloth.yml", "unsloth train --config"),
        ("trl", "d.trl-sft.yml", "trl sft --config"),
        ("llama-factory", "d.llama-factory.yml", "llamafactory-cli train"),
    ],
)
def test_a_recipe_comes_with_the_data_it_wants(
    home: Path, tmp_path: Path, recipe: str, config: str, command: str
) -> None:
    target = tmp_path / "d.jsonl"
    done = hermes(home, "export", "--recipe", recipe, "--output", str(target), "--base-model", "me/mine")
    assert f"recipe: {command} {tmp_path / config}" in done.stdout
    text = (tmp_path / config).read_text()
    assert "me/mine" in text
    named = (tmp_path / "dataset_info.json").read_text() if recipe == "llama-factory" else text
    assert "d.jsonl" in named
    assert len(lines(target)) == 4


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        (("--format", "nope", "--output", "x.jsonl"), "no format 'nope'"),
        (("--output", "x.jsonl", "--recipe", "nope"), "no recipe 'nope'"),
        (
            ("--output", "x.jsonl", "--recipe", "trl", "--format", "atif"),
            "the trl recipe cannot train on 'atif'",
        ),
        (("--output", "x.jsonl", "--where", "size>2"), "'size>2' is not a condition"),
        (
            ("--output", "x.jsonl", "--where", "turns>two"),
            "'turns>two' compares with something that is no number",
        ),
        (("--format", "messages"), "--output is missing"),
        (("--output", "x.jsonl", "--id", "NOTHING"), "'NOTHING' matches no trajectory"),
        (("--output", "x.jsonl", "--id", ""), "'' matches no trajectory"),
        (("--output", "x.txt"), "'x.txt' does not say which kind of file to write"),
    ],
)
def test_what_cannot_be_exported_says_what_can(home: Path, arguments: tuple[str, ...], error: str) -> None:
    message, *_ = hermes(home, "export", *arguments).stderr.removeprefix("error: ").splitlines()
    assert message == error
    assert hermes(home, "export", *arguments).returncode == 2


def test_redact_check_finds_what_an_export_would_take_away_and_never_prints_it(home: Path) -> None:
    clean = hermes(home, "trajectories", "redact", "--check")
    assert (clean.returncode, clean.stdout) == (0, "nothing found\n")
    plant(home)
    checked = hermes(home, "trajectories", "redact", "--check", "--json")
    assert checked.returncode == 1
    report = json.loads(checked.stdout)
    assert report["hits"] == {"names:url-password": 1}
    shown = hermes(home, "trajectories", "redact")
    assert shown.returncode == 0
    assert "[1] assistant: names:url-password" in shown.stdout
    assert "git clone https://x:[REDACTED:url-password]@h/r" in shown.stdout
    assert PLANTED not in checked.stdout + shown.stdout
    assert hermes(home, "trajectories", "redact", "--check", "--text", "sum").returncode == 0


def test_a_push_sends_data_manifest_and_card(home: Path, tmp_path: Path, hub: Hub) -> None:
    target = tmp_path / "mine.parquet"
    env = {"HF_TOKEN": TOKEN, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
    done = hermes(
        home, "export", "--format", "trl-sft", "--output", str(target), "--push-to-hub", "me/data", env=env
    )
    assert done.returncode == 0, done.stderr
    assert f"pushed to {hub.url}/datasets/me/data" in done.stdout
    assert hub.created[0]["visibility"] == "private"
    assert set(hub.files) == {"mine.parquet", "mine.manifest.json", "README.md"}
    assert hub.files["mine.parquet"] == target.read_bytes()
    card = hub.files["README.md"].decode()
    assert "trl-sft (version 1)" in card
    assert 'path: "mine.parquet"' in card
    assert "license: unknown" in card


def test_a_dry_run_of_a_push_says_what_would_be_sent_and_sends_nothing(
    home: Path, tmp_path: Path, hub: Hub
) -> None:
    env = {"HF_TOKEN": TOKEN, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
    target = tmp_path / "mine.parquet"
    push = ("export", "--output", str(target), "--push-to-hub", "me/data", "--dry-run")
    described = hermes(home, *push, env=env)
    assert described.returncode == 0, described.stderr
    assert "me/data, private: 4 rows; nothing was written or sent" in described.stdout
    assert "mine.parquet  " in described.stdout and "mine.manifest.json  " in described.stdout
    assert "secrets: none found" in described.stdout and "license: unknown" in described.stdout
    plant(home)
    facts = json.loads(hermes(home, *push, "--public", "--redact", "known", "--json", env=env).stdout)
    assert facts["visibility"] == "public" and "url-password" in facts["secrets"]
    assert PLANTED not in json.dumps(facts)
    assert (hub.requests, hub.files, target.exists()) == ([], {}, False)


def test_a_run_that_does_not_exist_is_no_empty_dataset(home: Path, tmp_path: Path, hub: Hub) -> None:
    env = {"HF_TOKEN": TOKEN, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
    target = tmp_path / "mine.jsonl"
    export = ("export", "--output", str(target), "--push-to-hub", "me/data")
    error, fix = failure(hermes(home, *export, "--run", "nosuch", env=env), 2)
    assert error == "no trajectory has the run 'nosuch'" and fix.startswith(("there are: ", "nothing is"))
    assert not target.exists()
    error, fix = failure(hermes(home, *export, "--where", "turns>99", env=env), 2)
    assert error.startswith("not pushed: the export has no rows") and fix == "widen the filter"
    assert hub.requests == []


@pytest.mark.parametrize("ending", [".jsonl", ".parquet", ".arrow", ""])
def test_a_planted_secret_stops_the_push_before_anything_is_sent(
    home: Path, tmp_path: Path, hub: Hub, ending: str
) -> None:
    plant(home)
    target = tmp_path / f"mine{ending}"
    env = {"HF_TOKEN": TOKEN, "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
    push = ("export", "--format", "sts", "--output", str(target), "--push-to-hub", "me/data")
    done = hermes(home, *push, "--redact", "known", env=env)
    error, fix = failure(done, 1)
    assert error.startswith("not pushed: 1 rows look as if they held secrets (names:url-password in 1 rows)")
    assert "--redact shapes" in fix
    assert PLANTED not in done.stderr
    assert (hub.requests, hub.files) == ([], {})
    assert hermes(home, *push, env=env).returncode == 0
    assert hub.files
    assert not any(PLANTED.encode() in content for content in hub.files.values())


def test_a_hub_that_refuses_is_reported(home: Path, tmp_path: Path, hub: Hub) -> None:
    env = {"HF_TOKEN": "hf_wrong", "HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "hf")}
    target = tmp_path / "mine.jsonl"
    done = hermes(home, "export", "--output", str(target), "--push-to-hub", "me/data", env=env)
    error, fix = failure(done, 1)
    assert error.startswith("the hub did not take me/data: Client error '401 Unauthorized'")
    assert "HF_TOKEN" in fix
    assert len(lines(target)) == 4
    env["HF_ENDPOINT"] = "http://127.0.0.1:9"
    done = hermes(home, "export", "--output", str(target), "--push-to-hub", "me/data", env=env)
    error, fix = failure(done, 1)
    assert error.startswith("the hub at http://127.0.0.1:9 cannot be reached") and "HF_TOKEN" not in fix
    error, _ = failure(hermes(home, "export", "--output", str(target), "--push-to-hub", "data", env=env), 2)
    assert error == "'data' is not a repository"
