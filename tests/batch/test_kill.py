"""Runs that are killed, stopped and poisoned: nothing is lost, done twice, or left behind."""

from __future__ import annotations

import json
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.batch.drive import command, rows, solve, start, workers_of, write_tasks
from tests.batch.kills import run_with_kills
from tests.cli.process import hermes
from tests.fakes.provider import FakeProvider, Reply, delayed, held
from tests.waiting import wait_until, wait_until_ended


def test_killed_again_and_again_the_dataset_equals_an_unbroken_one(tmp_path: Path) -> None:
    run_with_kills(tmp_path, kills=5, tasks=30)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_killed_a_hundred_times_the_dataset_equals_an_unbroken_one(tmp_path: Path) -> None:
    run_with_kills(tmp_path, kills=100, tasks=400)


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
        wait_until(lambda: len(provider.posts) >= 8)
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
        wait_until(lambda: len(provider.posts) >= 4)
        workers = workers_of(process.pid)
        assert workers
        process.kill()
        process.communicate()
        wait_until_ended(workers)
