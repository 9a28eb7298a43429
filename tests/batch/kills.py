"""A batch that is killed at random until it is complete."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

from tests.batch.drive import command, essence, rows, solve, start, workers_of, write_tasks
from tests.cli.process import hermes
from tests.fakes.provider import FakeProvider, Reply, delayed


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
    assert paid <= minimum + kills * 8  # the calls that were in flight at each kill
    broken_stats, whole_stats = (
        json.loads((tmp_path / "data" / name / "statistics.json").read_text()) for name in ("broken", "whole")
    )
    for stats in (broken_stats, whole_stats):
        stats.pop("timing", None)
        stats.pop("run_name")
    assert broken_stats == whole_stats
