"""Whole runs with real worker processes against a real endpoint: done once, resumed, refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hermes.config.paths import db_path
from hermes.store import Filter, Reader
from tests.batch.drive import command, rows, solve, write_tasks
from tests.cli.process import hermes
from tests.fakes.provider import FakeProvider, Reply, status, text, tool_calls
from tests.recipes.scripts import RECIPES


def test_every_row_and_sample_is_run_once_and_written_in_order(tmp_path: Path) -> None:
    write_tasks(tmp_path, 6, repeat=2)  # equal prompts are rows of their own
    with FakeProvider(solve) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, "--samples-per-prompt", "2"))
        assert len(provider.posts) == 6 * 2 * 2 * 2
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert (report["planned"], report["finished"], report["rows"], report["failed"]) == (24, 24, 24, {})
    written = rows(tmp_path)
    assert len({(row["key"], row["sample"]) for row in written}) == 24
    assert [row["conversations"][-1]["value"] for row in written[:12:2]] == [
        f"The answer is {2 * n}." for n in range(6)
    ]
    with Reader(db_path(tmp_path)) as reader:
        assert reader.count(Filter(run_id="run", stop_reason="completed")) == 24
        assert reader.search("answer 10")


def test_running_the_same_command_again_pays_for_nothing_and_changes_nothing(tmp_path: Path) -> None:
    write_tasks(tmp_path, 5)
    with FakeProvider(solve) as provider:
        hermes(tmp_path, *command(tmp_path, provider))
        paid = len(provider.posts)
        before = {
            path.name: path.read_bytes() for path in (tmp_path / "data/run").iterdir() if path.is_file()
        }
        assert hermes(tmp_path, *command(tmp_path, provider, "--resume")).returncode == 0
        assert len(provider.posts) == paid
    after = {path.name: path.read_bytes() for path in (tmp_path / "data/run").iterdir() if path.is_file()}
    assert before == after


def test_failures_are_typed_exit_non_zero_and_are_owed_on_the_next_start(tmp_path: Path) -> None:
    write_tasks(tmp_path, 4)

    def sometimes(body: dict[str, Any]) -> Reply:
        return (
            status(400, message="cannot do that one")
            if "Compute 2 " in str(body["messages"])
            else solve(body)
        )

    with FakeProvider(sometimes) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, "--max-tries", "2"))
        port = int(provider.base_url.rpartition(":")[2].partition("/")[0])
        refused = [post for post in provider.posts if "Compute 2 " in str(post.json["messages"])]
        assert len(refused) == 2
    assert done.returncode == 1
    assert json.loads(done.stdout)["finished"] == 3
    assert [row["tries"] for row in rows(tmp_path, file="failed.jsonl")] == [2]
    with FakeProvider(solve, port=port) as provider:
        again = hermes(tmp_path, *command(tmp_path, provider))
        assert len(provider.posts) == 2  # only the one that was owed
    assert again.returncode == 0
    assert len(rows(tmp_path)) == 4


def test_a_refused_key_stops_the_run_at_once_and_marks_nothing(tmp_path: Path) -> None:
    write_tasks(tmp_path, 50)
    with FakeProvider([status(401)], loop=True) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, "--concurrency", "8"))
        assert len(provider.posts) < 50
    assert done.returncode == 1
    assert "401" in done.stderr
    assert "fix:" in done.stderr
    journal = tmp_path / "data/run/journal"
    assert all(path.read_bytes() == b"" for path in journal.glob("*.jsonl"))


def test_a_changed_dataset_or_setting_is_refused_by_name_unless_accepted(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    with FakeProvider(solve) as provider:
        assert hermes(tmp_path, *command(tmp_path, provider)).returncode == 0
        write_tasks(tmp_path, 3)
        done = hermes(tmp_path, *command(tmp_path, provider))
        assert done.returncode == 2
        assert "dataset_digest" in done.stderr
        changed = hermes(tmp_path, *command(tmp_path, provider, "--temperature", "0.5", "--max-samples", "2"))
        assert changed.returncode == 2
        assert "settings" in changed.stderr
        paid = len(provider.posts)
        accepted = hermes(tmp_path, *command(tmp_path, provider, "--accept-changes"))
        assert accepted.returncode == 0
        assert len(provider.posts) == paid + 2  # only the new row
    assert len(rows(tmp_path)) == 3


def test_filtered_samples_are_kept_aside_and_never_paid_for_again(tmp_path: Path) -> None:
    write_tasks(tmp_path, 4)
    with FakeProvider(solve) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, "--require-reasoning"))
        paid = len(provider.posts)
        hermes(tmp_path, *command(tmp_path, provider, "--require-reasoning"))
        assert len(provider.posts) == paid
    assert json.loads(done.stdout)["filtered"] == 4
    assert {row["filtered"] for row in rows(tmp_path, file="filtered.jsonl")} == {"no reasoning"}


def test_a_reward_function_scores_with_the_sandbox_and_its_failure_is_no_zero(tmp_path: Path) -> None:
    write_tasks(tmp_path, 3)
    (tmp_path / "score.py").write_text(
        "def score(ctx):\n"
        "    ctx.write_file('answer.txt', ctx.answer)\n"
        "    if '4' in ctx.answer: raise RuntimeError('grader broke')\n"
        "    out = ctx.terminal('cat answer.txt')\n"
        "    return 1.0 if ctx.expected in out['output'] else 0.0\n"
    )
    with FakeProvider(solve) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, "--reward", f"{tmp_path / 'score.py'}:score"))
    assert done.returncode == 0, done.stderr
    by_answer = {row["conversations"][-1]["value"]: row for row in rows(tmp_path)}
    assert by_answer["The answer is 0."]["reward"] == 1.0
    assert by_answer["The answer is 2."]["reward"] == 1.0
    assert "reward" not in by_answer["The answer is 4."] or by_answer["The answer is 4."]["reward"] is None
    assert "grader broke" in by_answer["The answer is 4."]["reward_error"]
    with Reader(db_path(tmp_path)) as reader:
        assert reader.count(Filter(run_id="run", min_reward=1.0)) == 2


def test_a_known_secret_reaches_neither_journal_nor_dataset(tmp_path: Path) -> None:
    secret = "sk-verysecret-0123456789"
    (tmp_path / "tasks.jsonl").write_text(json.dumps({"prompt": f"Compute 1 + 1 with {secret}"}) + "\n")
    with FakeProvider([text(f"I saw {secret}.")]) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider), env={"OPENAI_API_KEY": secret})
    assert done.returncode == 0, done.stderr
    assert "[REDACTED:OPENAI_API_KEY]" in rows(tmp_path)[0]["conversations"][-1]["value"]
    leaks = [path for path in tmp_path.rglob("*") if path.is_file() and secret.encode() in path.read_bytes()]
    assert leaks == [tmp_path / "tasks.jsonl"]


def test_how_many_run_at_once_may_change_between_starts(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    with FakeProvider(solve) as provider:
        assert hermes(tmp_path, *command(tmp_path, provider, "--concurrency", "4")).returncode == 0
        paid, before = len(provider.posts), rows(tmp_path)
        again = hermes(tmp_path, *command(tmp_path, provider, "--concurrency", "9", "--num-workers", "1"))
        assert again.returncode == 0, again.stderr
        assert len(provider.posts) == paid and rows(tmp_path) == before, "the run was complete"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--run-name", "../evil"], "cannot name a run"),
        (["--toolsets", "terminl"], "terminal"),
        (["--distribution", "minimal"], "exclude each other"),
        (["--reward", "missing.py:f"], "missing.py"),
        (["--api-key", "sk-123456789"], "command line"),
        (["--resume"], "no run"),
        (["--max-samples", "0"], "0"),
    ],
)
def test_bad_flags_are_refused_before_anything_is_paid(tmp_path: Path, flags: list[str], said: str) -> None:
    write_tasks(tmp_path, 2)
    with FakeProvider(solve) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, *flags))
        assert provider.posts == []
    assert done.returncode == 2
    assert said in done.stderr


def test_a_batch_has_no_default_tools_that_need_a_person(tmp_path: Path) -> None:
    write_tasks(tmp_path, 1)
    with FakeProvider([text("Done.")], loop=True) as provider:
        plain = [word for word in command(tmp_path, provider) if word not in ("--toolsets", "math")]
        done = hermes(tmp_path, *plain)
        offered = {tool["function"]["name"] for tool in provider.posts[0].json["tools"]}
        system = provider.posts[0].json["messages"][0]["content"]
    assert done.returncode == 0, done.stderr
    assert {"terminal", "read_file"} <= offered
    assert not offered & {"skill_view", "skills_list", "session_search", "clarify", "memory_save", "memory"}
    assert "skill_view" not in system


def test_toolsets_that_cannot_be_used_are_refused_before_the_start(tmp_path: Path) -> None:
    """--distribution=image_gen without an image model, as a stranger's first command has it."""
    write_tasks(tmp_path, 3)
    flags = ("--distribution", "image_gen", "--seed", "3")
    with FakeProvider(lambda body: text("Drawn.")) as provider:
        plain = [word for word in command(tmp_path, provider) if word not in ("--toolsets", "math")]
        refused = hermes(tmp_path, *plain, *flags)
        assert provider.posts == []
        allowed = hermes(tmp_path, *plain, *flags, "--allow-missing-toolsets")
        offered = [
            {tool["function"]["name"] for tool in post.json.get("tools", ())} for post in provider.posts
        ]
    assert refused.returncode == 2
    assert (
        "the distribution 'image_gen' names toolsets that cannot be used here: image_gen (" in refused.stderr
    )
    assert "vision (" in refused.stderr and "media.image_model" in refused.stderr
    assert "--allow-missing-toolsets" in refused.stderr
    assert allowed.returncode == 0, allowed.stderr
    assert "going on without image_gen (" in allowed.stderr
    assert len(offered) == 3 and all(offered), "no sample is bare"
    statistics = json.loads((tmp_path / "data/run/statistics.json").read_text())
    assert statistics["missing_toolsets"] == ["image_gen", "vision"]
    assert set(statistics["toolsets_offered"]) <= {"web", "terminal"}
    assert statistics["tools_offered"] == dict(Counter(name for names in offered for name in names))
    assert statistics["samples_without_tools"] == 0


def test_a_distribution_goes_on_without_what_it_is_not_about(tmp_path: Path) -> None:
    """--distribution=default on a machine without a vision and an image model."""
    write_tasks(tmp_path, 2)
    with FakeProvider(lambda body: text("Done.")) as provider:
        plain = [word for word in command(tmp_path, provider) if word not in ("--toolsets", "math")]
        done = hermes(tmp_path, *plain, "--distribution", "default")
        offered = [
            {tool["function"]["name"] for tool in post.json.get("tools", ())} for post in provider.posts
        ]
    assert done.returncode == 0, done.stderr
    assert "the distribution 'default': going on without vision (" in done.stderr
    assert len(offered) == 2 and all({"terminal", "read_file"} <= names for names in offered)
    statistics = json.loads((tmp_path / "data/run/statistics.json").read_text())
    assert {"vision", "image_gen"} <= {*statistics["missing_toolsets"]}
    recorded = json.loads((tmp_path / "data/run/run.json").read_text())
    assert {"vision", "image_gen"} <= {*recorded["missing_toolsets"]}


def test_a_named_toolset_that_cannot_be_used_is_refused_too(tmp_path: Path) -> None:
    write_tasks(tmp_path, 1)
    with FakeProvider(solve) as provider:
        mixed = hermes(tmp_path, *command(tmp_path, provider, "--toolsets", "math,image_gen"))
        alone = ("--toolsets", "image_gen", "--allow-missing-toolsets")
        nothing_left = hermes(tmp_path, *command(tmp_path, provider, *alone))
        assert provider.posts == []
    assert mixed.returncode == nothing_left.returncode == 2
    assert "--toolsets names toolsets that cannot be used here: image_gen (" in mixed.stderr
    assert "no toolset of --toolsets can be used here" in nothing_left.stderr


def test_old_command_lines_work_as_they_stand(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    with FakeProvider(solve) as provider:
        environ = {
            "HERMES_HOME": str(tmp_path),
            "PATH": os.environ["PATH"],
            "OPENAI_BASE_URL": provider.base_url,
        }
        done = subprocess.run(
            [
                sys.executable,
                str(RECIPES / "batch_runner.py"),
                f"--dataset_file={tmp_path}/tasks.jsonl",
                "--batch_size=10",
                "--run_name=my_run",
                "--distribution=minimal",
                "--num_workers=1",
                "--model=openai/m",
                "--providers_allowed=Together, Groq",
                *("--provider_sort", "price"),
            ],
            env=environ,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert len((tmp_path / "data/my_run/trajectories.jsonl").read_text().splitlines()) == 2
    assert provider.requests[0].json["provider"] == {"only": ["Together", "Groq"], "sort": "price"}
    listing = hermes(tmp_path, "batch", "--list_distributions")
    assert "terminal_only" in listing.stdout
    status_of = hermes(
        tmp_path, "batch", "status", "my_run", "--output-dir", str(tmp_path / "data"), "--json"
    )
    assert json.loads(status_of.stdout)["done"] == 2


def test_a_grader_that_always_fails_is_reported_with_its_message_and_an_exit_code(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    grader = tmp_path / "grader.py"
    grader.write_text("def reward(ctx):\n    raise KeyError('answer')\n")
    with FakeProvider(solve) as provider:
        words = [
            word for word in command(tmp_path, provider, "--reward", f"{grader}:reward") if word != "--json"
        ]
        done = hermes(tmp_path, *words)
    assert done.returncode == 1
    assert "unscored: 2 by KeyError (the reward function failed), for example:" in done.stdout


def test_rows_tell_whether_their_thinking_was_shown_and_the_export_shows_what_was(tmp_path: Path) -> None:
    write_tasks(tmp_path, 4)

    def answer(body: dict[str, Any]) -> Reply:
        question = body["messages"][-1]
        if question["role"] == "tool":
            return text("Done.", reasoning="It is done.")
        thinking = "Which tool?" if question["content"] in ("Compute 1 + 1", "Compute 3 + 3") else None
        return tool_calls([("calculator", {"expression": "1"})], reasoning=thinking)

    with FakeProvider(answer) as provider:
        flags = [flag for flag in command(tmp_path, provider) if flag != "--json"]
        done = hermes(tmp_path, *flags)
        sent = [post.json["messages"] for post in provider.posts]
    assert done.returncode == 0, done.stderr
    assert not any("reasoning_content" in message for messages in sent for message in messages)
    assert [row["thinking_shown"] for row in rows(tmp_path)] == [True, False, True, False]
    assert "rows with thinking that a later call was not shown: 2" in done.stdout
    (line,) = [line for line in done.stdout.splitlines() if "hermes export" in line]
    words = line[line.index("hermes export") :].split()[1:]
    output = tmp_path / "train.jsonl"
    assert hermes(tmp_path, *words[:-1], str(output)).returncode == 0
    turns = [json.loads(line)["conversations"] for line in output.read_text().splitlines()]
    assert len(turns) == 6, "two rows of each sample whose thinking was not shown"
    for conversation in turns:
        answers = [turn["value"] for turn in conversation if turn["from"] == "gpt"]
        assert not any("<think>" in value for value in answers[:-1])
