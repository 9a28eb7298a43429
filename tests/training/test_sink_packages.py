"""The sinks with the real packages, each in a process of its own, as a trainer has them."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hermes.training.monitor.sinks import read_wandb
from tests.training.sink_packages import needs

SCRIPT = """
import json, sys
from pathlib import Path
from hermes.training.monitor.sinks import JsonLines, Label, Sinks
name, folder = sys.argv[1], Path(sys.argv[2])
for first in (1, 3):
    sinks = Sinks([JsonLines(folder)])
    sinks.add(name, folder, Label("run-1", "project-1", "title-1"), {"rank": 8})
    for step in (first, first + 1):
        sinks.write(step, {"reward/mean": step / 8})
    sinks.close()
print(json.dumps(sinks.failures))
"""
"""Two lives of one run."""


def run(name: str, folder: Path, **environ: str) -> Any:
    """The failures that were counted, out of a standard output that has nothing else."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, name, str(folder)],
        env={**os.environ, "HOME": str(folder), "TRACKIO_DIR": str(folder / "trackio"), **environ},
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == [1, 2, 3, 4], "the run's own file has every step"
    return json.loads(done.stdout)


def test_wandb_offline_keeps_every_number_on_this_machine(tmp_path: Path) -> None:
    assert run("wandb-offline", tmp_path) == {}
    kept = [path.read_bytes() for path in tmp_path.glob("wandb/offline-run-*/run-run-1.wandb")]
    assert len(kept) == 2 and all(b"reward/mean" in content for content in kept)
    assert all(b"title-1" in content for content in kept)
    assert read_wandb(tmp_path) == {"url": None, "error": None}


def test_trackio_has_both_lives_of_a_run_in_one_table(tmp_path: Path) -> None:
    needs("trackio")
    assert run("trackio", tmp_path) == {}
    with sqlite3.connect(tmp_path / "trackio" / "project-1.db") as database:
        rows = database.execute("SELECT run_name, step, metrics FROM metrics ORDER BY step").fetchall()
    assert [(name, step) for name, step, _ in rows] == [("title-1", step) for step in (1, 2, 3, 4)]
    assert [json.loads(told)["reward/mean"] for *_, told in rows] == [0.125, 0.25, 0.375, 0.5]


def test_tensorboard_reads_back_what_was_written(tmp_path: Path) -> None:
    reading = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator",
        reason="the package tensorboard is not installed",
    )
    assert run("tensorboard", tmp_path) == {}
    events = reading.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(one.step, one.value) for one in events.Scalars("reward/mean")] == [
        (1, 0.125),
        (2, 0.25),
        (3, 0.375),
        (4, 0.5),
    ]


@pytest.mark.slow
def test_a_service_that_does_not_answer_is_counted_and_the_run_goes_on(tmp_path: Path) -> None:
    key = "0123456789" * 4
    assert run("wandb", tmp_path, WANDB_BASE_URL="http://127.0.0.1:9", WANDB_API_KEY=key) == {"wandb": 1}
    assert read_wandb(tmp_path)["error"]
