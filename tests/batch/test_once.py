"""One process carries out a run, its dataset is written at every end, and a sample is one row of it."""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hermes.config.paths import db_path
from hermes.core import Boundary, Outcome, Relation, Source, StopReason
from hermes.data.export.select import LeftOut, TrajectorySelection, select
from hermes.store import Filter, Reader, Writer
from tests import records
from tests.batch.drive import command, last_lines, rows, solve, start, write_tasks
from tests.cli.process import failure, hermes
from tests.fakes.provider import FakeProvider, Reply, held, status
from tests.waiting import wait_until


def export_run(folder: Path, *flags: str) -> list[dict[str, Any]]:
    output = folder / "export.jsonl"
    done = hermes(folder, "export", "--run", "run", "--output", str(output), *flags)
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in output.read_text().splitlines()]


def test_a_second_start_at_the_same_time_names_the_first_and_sends_nothing(tmp_path: Path) -> None:
    write_tasks(tmp_path, 8)
    go = threading.Event()
    with FakeProvider(lambda body: held(go, solve(body))) as provider:
        first = start(tmp_path, *command(tmp_path, provider, "--concurrency", "4"))
        wait_until(lambda: len(provider.posts) >= 4)
        error, fix = failure(hermes(tmp_path, *command(tmp_path, provider)), 2)
        assert f"process {first.pid} on {socket.gethostname()} since " in error
        assert "hermes batch status run" in fix
        go.set()
        _, err = first.communicate(timeout=60)
        assert first.returncode == 0, err
        assert len(provider.posts) == 16
        again = hermes(tmp_path, *command(tmp_path, provider))
        assert again.returncode == 0 and len(provider.posts) == 16
    assert len(rows(tmp_path)) == len(export_run(tmp_path)) == 8


def test_the_lock_of_a_killed_process_blocks_no_one(tmp_path: Path) -> None:
    write_tasks(tmp_path, 4)
    go = threading.Event()
    with FakeProvider(lambda body: held(go, solve(body))) as provider:
        first = start(tmp_path, *command(tmp_path, provider))
        wait_until(lambda: len(provider.posts) >= 1)
        os.kill(first.pid, signal.SIGKILL)
        first.communicate()
        go.set()
        assert hermes(tmp_path, *command(tmp_path, provider)).returncode == 0
    assert len(rows(tmp_path)) == 4


def test_after_a_fatal_stop_the_finished_samples_are_a_dataset(tmp_path: Path) -> None:
    write_tasks(tmp_path, 30)

    def answer(body: dict[str, Any]) -> Reply:
        return solve(body) if len(provider.posts) <= 20 else status(401, message="the key has expired")

    with FakeProvider(answer) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, "--concurrency", "2", "--num-workers", "1"))
        assert done.returncode == 1
        assert "the key has expired" in last_lines(done.stderr)[0]
        dataset = rows(tmp_path)
        assert len(dataset) >= 9
        report = json.loads(done.stdout.splitlines()[-1])
        assert (report["rows"], report["finished"]) == (len(dataset), len(dataset))
        statistics = json.loads((tmp_path / "data/run/statistics.json").read_text())
        assert statistics["samples"]["done"] == len(dataset)
        assert len(rows(tmp_path, file="failed.jsonl")) == 30 - len(dataset)


def attempt_at(
    writer: Writer,
    task: str,
    sample: int,
    outcome: Outcome = records.COMPLETED,
    run: str = "a",
    **known: object,
) -> str:
    return records.record(
        writer,
        records.conversation("Q"),
        outcome=outcome,
        source=Source.BATCH,
        run_id="run",
        task_id=task,
        sample_index=sample,
        config={"run": run},
        **known,
    )


@pytest.mark.parametrize("seed", range(3))
def test_a_selection_takes_one_attempt_at_each_sample(tmp_path: Path, seed: int) -> None:
    print(f"seed {seed}")
    draw = random.Random(seed)
    cut = Outcome(StopReason.CUT, Boundary.HOST)
    limit = Outcome(StopReason.MAX_TURNS, Boundary.LIMIT)
    expected: dict[tuple[str, int], str | None] = {}
    with Writer(db_path(tmp_path)) as writer:
        for task in range(12):
            for sample in range(2):
                completed: list[str] = []
                for _ in range(draw.randint(1, 4)):
                    outcome = draw.choice([records.COMPLETED, cut, limit])
                    attempt = attempt_at(writer, f"t{task}", sample, outcome)
                    if outcome is records.COMPLETED:
                        completed.append(attempt)
                expected[f"t{task}", sample] = completed[0] if completed else None
        other = attempt_at(writer, "t0", 0, run="b")  # another run of the same name, in another folder
    with Reader(db_path(tmp_path)) as reader:
        for everything in (False, True):
            selection = TrajectorySelection(Filter(run_id="run"), only_completed=not everything)
            left_out = LeftOut()
            headers = [example.trajectory.header for example in select(reader, selection, left_out)]
            taken = Counter((h.task_id, h.sample_index) for h in headers if h.config["run"] == "a")
            assert max(taken.values()) == 1
            assert len(taken) == (24 if everything else sum(1 for name in expected.values() if name))
            assert {name for name in expected.values() if name} <= {h.id for h in headers}
            assert other in {h.id for h in headers}
            assert len(headers) + left_out.reasons.total() == reader.count()


def test_an_attempt_that_another_one_continues_is_no_row(tmp_path: Path) -> None:
    with Writer(db_path(tmp_path)) as writer:
        first = attempt_at(writer, "t", 0, Outcome(StopReason.MAX_COST, Boundary.LIMIT))
        turns = Outcome(StopReason.MAX_TURNS, Boundary.LIMIT)
        second = attempt_at(writer, "t", 0, turns, parent_id=first, relation=Relation.CONTINUED)
    with Reader(db_path(tmp_path)) as reader:
        selection = TrajectorySelection(only_completed=False)
        assert [example.id for example in select(reader, selection, LeftOut())] == [second]
