"""`hermes batch --harbor` and `hermes bench --harbor`: our agent does tasks, whose own tests score it."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hermes.sandbox.open import unusable_reason
from tests.batch.drive import last_lines, rows, start, workers_of
from tests.cli.process import failure, hermes
from tests.envs.harbor.folders import write_task
from tests.fakes.provider import FakeProvider, Reply, text, tool_calls
from tests.waiting import wait_until

pytestmark = pytest.mark.skipif(unusable_reason("bubblewrap") is not None, reason="it needs bubblewrap")


def obey(body: dict[str, Any]) -> Reply:
    """Runs the instruction as a command, and is done."""
    last = body["messages"][-1]
    if last["role"] == "tool":
        return text("Done.")
    return tool_calls([("terminal", {"command": last["content"].strip()})])


def command(folder: Path, provider: FakeProvider, *flags: str, what: str = "batch") -> list[str]:
    name = ["--run-name", "run"] if what == "batch" else []
    return [
        *(what, "--harbor", str(folder / "tasks"), *name, "--output-dir", str(folder / "data")),
        *("--base-url", provider.base_url, "--num-workers", "2", "--env.place", "bubblewrap", *flags),
    ]


def write_steps(folder: Path) -> None:
    """Three steps, of which the second ends the task unless its file is there."""
    toml = "".join(f'[[steps]]\nname = "{name}"\nmin_reward = 1\n' for name in "abc")
    write_task(folder, toml=toml)
    (folder / "instruction.md").unlink()
    for name, prompt in zip("abc", ("touch a", "touch other", "touch c"), strict=True):
        step = folder / "steps" / name
        (step / "tests").mkdir(parents=True)
        (step / "instruction.md").write_text(prompt)
        test = f"if [ -e /app/{name} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt"
        (step / "tests/test.sh").write_text(test)


def test_the_tasks_tests_score_our_agent_and_a_broken_task_is_one_line(tmp_path: Path) -> None:
    tasks = tmp_path / "tasks"
    write_task(tasks / "right", instruction="echo 42 > answer.txt")
    write_task(tasks / "wrong", instruction="echo 41 > answer.txt")
    write_task(tasks / "thief", instruction="mkdir -p /logs/verifier; echo 1 > /logs/verifier/reward.txt")
    write_steps(tasks / "steps")
    write_task(tasks / "gpu", toml="[environment]\ngpus = 1")
    write_task(tasks / "unbuildable", dockerfile="FROM debian:12\nRUN echo no package >&2; exit 7\n")
    write_task(tasks / "silent", instruction="true", test="true")
    write_task(tasks / "endless", toml="[verifier]\ntimeout_sec = 1.0", instruction="true", test="sleep 600")
    with FakeProvider(obey) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, "--max-tries", "1"), timeout_s=300)
        posts = len(provider.posts)
        assert done.returncode == 1
        assert "left out: gpu: environment.gpus = 1: no GPU can be given to a task." in done.stderr
        assert "RUN echo no package" in done.stdout and "neither reward.json nor reward.txt" in done.stdout
        assert "the tests did not end within 1 s" in done.stdout
        written = {row["key"]: row for row in rows(tmp_path)}
        rewards = {key: row.get("reward") for key, row in written.items()}
        assert rewards == {
            "right": 1,
            "wrong": 0,
            "thief": 0,
            "steps": pytest.approx(1 / 3),
            "silent": None,
            "endless": None,
        }
        prompts = [turn["value"] for turn in written["steps"]["conversations"] if turn["from"] == "human"]
        assert prompts == ["touch a", "touch other"]
        assert [row["task"] for row in rows(tmp_path, file="bad_rows.jsonl")] == ["gpu"]
        (failed,) = rows(tmp_path, file="failed.jsonl")
        assert "TaskError: environment/Dockerfile: RUN echo no package" in json.dumps(failed)
        assert json.loads((tmp_path / "data/run/statistics.json").read_text())["reward"]["count"] == 4
        hermes(tmp_path, *command(tmp_path, provider, "--max-tries", "1"), timeout_s=300)
        assert len(provider.posts) == posts, "what was finished is not paid again"
        (tasks / "right/instruction.md").write_text("echo 43 > answer.txt")
        changed = hermes(tmp_path, *command(tmp_path, provider))
        assert changed.returncode == 2 and "dataset_digest" in last_lines(changed.stderr)[0]
    assert not list((tmp_path / "harbor/trials").iterdir())
    stored = hermes(tmp_path, "trajectories", "list", "--json").stdout
    assert stored.count('"run"') >= 6


def test_killed_at_any_moment_it_goes_on_and_pays_nothing_twice(tmp_path: Path) -> None:
    for number in range(6):
        instruction = f"echo {number} > answer.txt"
        test = f'[ "$(cat /app/answer.txt)" = {number} ]; echo $((1 - $?)) > /logs/verifier/reward.txt'
        write_task(tmp_path / f"tasks/t{number}", instruction=instruction, test=test)
    with FakeProvider(obey) as provider:
        for posts in (2, 5, 8):
            process = start(tmp_path, *command(tmp_path, provider))
            wait_until(lambda: len(provider.posts) >= posts or process.poll() is not None)  # noqa: B023
            workers = workers_of(process.pid)
            for killed in (process.pid, *workers) if posts != 5 else workers:
                os.kill(killed, signal.SIGKILL)
            process.communicate(timeout=120)
        done = hermes(tmp_path, *command(tmp_path, provider), timeout_s=300)
        assert done.returncode == 0, done.stderr
        asked = Counter(request.json["messages"][-1]["content"] for request in provider.posts)
    assert [row["reward"] for row in rows(tmp_path)] == [1] * 6
    # a call that was in flight at a kill had no answer to keep: at most one a worker and kill
    assert len(provider.posts) <= 12 + 3 * 4, asked
    assert not list((tmp_path / "harbor/trials").iterdir())


def test_models_are_compared_on_a_folder(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/a", instruction="echo 42 > answer.txt")
    write_task(tmp_path / "tasks/b", instruction="echo 42 > answer.txt")

    def answer(body: dict[str, Any]) -> Reply:
        return obey(body) if body["model"] == "able" else text("I cannot.")

    with FakeProvider(answer) as provider:
        flags = ("--model", "able,unable", "--json")
        done = hermes(tmp_path, *command(tmp_path, provider, *flags, what="bench"), timeout_s=300)
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["scoring"] == "the tasks' own tests" and report["run"] == "bench-tasks"
        assert [(score["model"], score["score"]) for score in report["scores"]] == [
            ("able", 1),
            ("unable", 0),
        ]
        reward = ("--reward", "x.py:f")
        error, _ = failure(hermes(tmp_path, *command(tmp_path, provider, *flags, *reward, what="bench")), 2)
        assert "--harbor and --reward exclude each other" in error


def test_what_does_not_go_with_a_folder_of_tasks_is_named(tmp_path: Path) -> None:
    write_task(tmp_path / "tasks/a", toml="[environment]\ngpus = 1")
    with FakeProvider(obey) as provider:
        error, _ = failure(hermes(tmp_path, *command(tmp_path, provider)), 2)
        assert "none of the 1 tasks can be used; the first, a: environment.gpus" in error
        for flags in (("--dataset-file", "x.jsonl"), ("--sandbox", "local"), ("--ray", "127.0.0.1:1")):
            error, _ = failure(hermes(tmp_path, *command(tmp_path, provider, *flags)), 2)
            assert f"--harbor and {flags[0]} exclude each other" in error
        error, _ = failure(hermes(tmp_path, *command(tmp_path, provider, "--env.wheels", "/no/such")), 2)
        assert "there is no folder '/no/such'" in error
        error, _ = failure(hermes(tmp_path, "batch", "--run-name", "r", "--harbor", str(tmp_path / "no")), 2)
    assert not provider.posts
