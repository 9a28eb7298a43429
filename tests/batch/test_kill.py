"""Runs that are killed, stopped and poisoned: nothing is lost, done twice, or left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.batch.drive import command, essence, rows, solve, start, workers_of, write_tasks
from tests.cli.process import hermes
from tests.fakes.provider import FakeProvider, Reply, delayed, held


def kill_sometimes(folder: Path, provider: FakeProvider, kills: int, arguments: list[str]) -> int:
    """Runs to the end with `kills` kill -9s of the parent or of a worker; returns how many starts it took."""
    moments = random.Random(7)
    starts = 0
    while True:
        starts += 1
        process = start(folder, *arguments)
        while process.poll() is None and kills:
            seen = len(provider.posts)
            while process.poll() is None and len(provider.posts) == seen:
                time.sleep(0.005)  # it works
            time.sleep(moments.uniform(0, 0.1))
            workers = workers_of(process.pid)
            if moments.random() < 0.5 and workers:
                os.kill(moments.choice(workers), signal.SIGKILL)
            else:
                process.kill()
            kills -= 1
        _, err = process.communicate()
        if process.returncode == 0:
            return starts
        assert process.returncode in (-signal.SIGKILL, 1), err


def test_killed_again_and_again_the_dataset_equals_an_unbroken_one(tmp_path: Path) -> None:
    run_with_kills(tmp_path, kills=5, tasks=30)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_a_hundred_times_the_dataset_equals_an_unbroken_one(tmp_path: Path) -> None:
    run_with_kills(tmp_path, kills=100, tasks=400)


def run_with_kills(tmp_path: Path, kills: int, tasks: int) -> None:
    write_tasks(tmp_path, tasks)

    def unhurried(body: dict[str, Any]) -> Reply:
        return delayed(0.05, solve(body))

    flags = ("--samples-per-prompt", "2", "--concurrency", "8", "--max-tries", "100")
    with FakeProvider(unhurried) as provider:
        whole = hermes(tmp_path, *command(tmp_path, provider, *flags, name="whole"), timeout_s=600)
        assert whole.returncode == 0, whole.stderr
        minimum = len(provider.posts)
        starts = kill_sometimes(tmp_path, provider, kills, command(tmp_path, provider, *flags, name="broken"))
        paid = len(provider.posts) - minimum
    assert starts > 1
    broken, unbroken = rows(tmp_path, "broken"), rows(tmp_path, "whole")
    assert [essence(row) for row in broken] == [essence(row) for row in unbroken]
    assert Counter((row["key"], row["sample"]) for row in broken).most_common(1)[0][1] == 1
    assert paid <= minimum + kills * 8 * 2  # at most what was in flight at each kill
    broken_stats, whole_stats = (
        json.loads((tmp_path / "data" / name / "statistics.json").read_text()) for name in ("broken", "whole")
    )
    for stats in (broken_stats, whole_stats):
        stats.pop("timing", None)
        stats.pop("run_name")
    assert broken_stats == whole_stats


def test_a_sample_that_kills_its_worker_is_given_up_and_no_other_is_harmed(tmp_path: Path) -> None:
    write_tasks(tmp_path, 12)
    (tmp_path / "poison.py").write_text(
        "import os\n"
        "def score(ctx):\n"
        "    if 'Compute 5 ' in ctx.row.prompts[0]: os.kill(os.getpid(), 9)\n"
        "    return 1.0\n"
    )
    with FakeProvider(solve) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, "--reward", f"{tmp_path / 'poison.py'}:score"))
    assert done.returncode == 1
    assert len(rows(tmp_path)) == 11
    (failed,) = rows(tmp_path, file="failed.jsonl")
    assert "WorkerDied: 3 times" in json.dumps(failed)


def test_ctrl_c_once_drains_and_the_same_command_continues(tmp_path: Path) -> None:
    write_tasks(tmp_path, 30)
    draining = threading.Event()

    def answer(body: dict[str, Any]) -> Reply:
        return solve(body) if len(provider.posts) < 8 else held(draining, solve(body))

    with FakeProvider(answer) as provider:
        process = start(tmp_path, *command(tmp_path, provider, "--concurrency", "4"))
        while len(provider.posts) < 8:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.stderr is not None
        while "Ctrl-C again" not in process.stderr.readline():
            assert process.poll() is None
        draining.set()
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 1
        report = json.loads(out.splitlines()[-1])
        assert report["stopped"]
        assert 0 < report["finished"] < 30
        # what was in flight was finished, not thrown away: no request was wasted
        assert len(provider.posts) == 2 * report["finished"]
        assert hermes(tmp_path, *command(tmp_path, provider, "--concurrency", "4")).returncode == 0
        assert len(provider.posts) == 60
    assert len(rows(tmp_path)) == 30


def test_no_worker_outlives_a_killed_parent(tmp_path: Path) -> None:
    write_tasks(tmp_path, 30)
    with FakeProvider(lambda body: delayed(0.2, solve(body))) as provider:
        process = start(tmp_path, *command(tmp_path, provider))
        while len(provider.posts) < 4:
            time.sleep(0.01)
        workers = workers_of(process.pid)
        assert workers
        process.kill()
        process.communicate()
        deadline = time.monotonic() + 30
        while any(Path(f"/proc/{pid}").exists() for pid in workers):
            assert time.monotonic() < deadline, "a worker outlived its parent"
            time.sleep(0.05)
