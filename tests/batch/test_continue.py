"""Interrupted samples go on from their recorded steps: what was paid for is not asked again."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from hermes.config.paths import db_path
from hermes.sandbox import unusable_reason
from hermes.store import Filter, Reader
from tests.batch.drive import (
    CALL_USD,
    PRICED,
    command,
    essence,
    last_lines,
    rows,
    solve,
    start,
    workers_of,
    write_rows,
    write_tasks,
)
from tests.cli.process import hermes
from tests.fakes.provider import FakeProvider, Reply, held, status, text, tool_calls
from tests.waiting import wait_until, wait_until_ended

CALLS = 10


def turn_of(body: dict[str, Any]) -> int:
    return sum(message["role"] == "assistant" for message in body["messages"])


def steps_of(*commands: str) -> list[tuple[str, dict[str, Any]]]:
    return [("terminal", {"command": line}) for line in commands]


class Interrupted:
    """A run whose calls of one turn are held until it is killed, and then goes on."""

    def __init__(
        self, folder: Path, calls: list[tuple[str, dict[str, Any]]], hold_at: int, samples: int
    ) -> None:
        self._folder, self._calls, self._hold_at, self._samples = folder, calls, hold_at, samples
        self._gate = threading.Event()
        self.provider = FakeProvider(self._answer)

    def _answer(self, body: dict[str, Any]) -> Reply:
        turn = turn_of(body)
        last = body["messages"][-1]["content"]
        reply = tool_calls([self._calls[turn]]) if turn < len(self._calls) else text(f"The answer is {last}.")
        return held(self._gate, reply) if turn == self._hold_at else reply

    def _held(self) -> int:
        return sum(turn_of(post.json) == self._hold_at for post in self.provider.posts)

    def kill(self, *flags: str, worker_only: bool = False, env: Mapping[str, str] | None = None) -> None:
        """Starts the run and kills it while all samples wait for the held call."""
        process = start(self._folder, *command(self._folder, self.provider, *flags), env=env)
        wait_until(
            lambda: sum(turn_of(post.json) == self._hold_at for post in self.provider.posts) == self._samples
        )
        workers = workers_of(process.pid)
        if worker_only:
            for worker in workers:
                os.kill(worker, signal.SIGKILL)
            self._gate.set()
            _, err = process.communicate(timeout=60)
            assert process.returncode == 0, err
        else:
            process.kill()
            process.communicate()
            wait_until_ended(workers)
            self._gate.set()


CALCULATIONS = [("calculator", {"expression": f"{number} + 1"}) for number in range(CALLS - 1)]


@pytest.mark.parametrize("worker_only", [False, True], ids=["the command", "its workers"])
def test_a_kill_costs_the_calls_that_were_in_flight_and_no_other(tmp_path: Path, worker_only: bool) -> None:
    write_tasks(tmp_path, 6)
    run = Interrupted(tmp_path, CALCULATIONS, hold_at=8, samples=6)
    with run.provider as provider:
        run.kill(worker_only=worker_only)
        if not worker_only:
            again = hermes(tmp_path, *command(tmp_path, provider))
            assert again.returncode == 0, again.stderr
        assert len(provider.posts) == 6 * CALLS + 6
        whole = hermes(tmp_path, *command(tmp_path, provider, name="whole"))
        assert whole.returncode == 0, whole.stderr
    continued, unbroken = rows(tmp_path), rows(tmp_path, "whole")
    assert [essence(row) for row in continued] == [essence(row) for row in unbroken]
    for name in ("usage", "turns", "tool_stats", "conversations"):
        assert [row[name] for row in continued] == [row[name] for row in unbroken], name
    assert [set(row) for row in continued] == [set(row) for row in unbroken]
    state = json.loads(
        hermes(tmp_path, "batch", "status", "run", "--output-dir", str(tmp_path / "data"), "--json").stdout
    )
    assert (state["continued"], state["replayed_calls"], state["repeated_calls"]) == (6, 6 * 8, 0)
    with Reader(db_path(tmp_path)) as reader:  # a call that was recorded twice was made once
        assert reader.stats(Filter(run_id="run")).turns == 6 * CALLS
        assert reader.stats(Filter(run_id="run")).tools["calculator"].calls == 6 * (CALLS - 1)


def test_samples_that_ended_without_an_entry_are_taken_over(tmp_path: Path) -> None:
    write_tasks(tmp_path, 8)
    with FakeProvider(solve) as provider:
        assert hermes(tmp_path, *command(tmp_path, provider)).returncode == 0
        before, requests = rows(tmp_path), len(provider.posts)
        for segment in (tmp_path / "data/run/journal").glob("*.jsonl"):
            segment.unlink()
        again = hermes(tmp_path, *command(tmp_path, provider))
        assert again.returncode == 0, again.stderr
        assert len(provider.posts) == requests
    after = rows(tmp_path)
    assert [row["id"] for row in after] == [row["id"] for row in before]
    assert [(row["reward"], row["cost_usd"], row["toolsets"]) for row in after] == [
        (row["reward"], row["cost_usd"], row["toolsets"]) for row in before
    ]


@pytest.mark.parametrize("reproducible", [True, False])
def test_what_was_lost_with_the_sandbox_is_done_again_and_the_model_asked_only_if_it_differs(
    tmp_path: Path, reproducible: bool
) -> None:
    if reason := unusable_reason("bubblewrap"):
        pytest.skip(reason)
    write_rows(tmp_path, *({"prompt": f"task {number}"} for number in range(3)))
    changing = "date +%N" if not reproducible else "echo same"
    calls = steps_of("echo one > a.txt && cat a.txt", changing, "cat a.txt; echo two >> a.txt", "cat a.txt")
    run = Interrupted(tmp_path, calls, hold_at=3, samples=3)
    flags = ("--toolsets", "terminal", "--sandbox", "bubblewrap")
    with run.provider as provider:
        run.kill(*flags)
        again = hermes(tmp_path, *command(tmp_path, provider, *flags))
        assert again.returncode == 0, again.stderr
        needed = 3 * 5
        repeated = 0 if reproducible else 3  # the third call of each sample had seen the other nanoseconds
        assert len(provider.posts) == needed + 3 + repeated
    for row in rows(tmp_path):
        assert "one\\ntwo" in row["conversations"][-1]["value"]
    state = hermes(tmp_path, "batch", "status", "run", "--output-dir", str(tmp_path / "data")).stdout
    assert f"3 interrupted samples: {9 - repeated} recorded model calls used, {repeated} asked again" in state


def test_a_local_sandbox_has_the_path_of_the_killed_one_and_nothing_of_it_stays(tmp_path: Path) -> None:
    write_rows(tmp_path, *({"prompt": f"task {number}"} for number in range(3)))
    run = Interrupted(tmp_path, steps_of("pwd", "ls -a", "pwd"), hold_at=3, samples=3)
    with run.provider as provider:
        run.kill("--toolsets", "terminal", "--sandbox", "local", worker_only=True)
        assert len(provider.posts) == 3 * 4 + 3
    workspaces = tmp_path / "workspaces"
    assert all(str(workspaces) in row["conversations"][-1]["value"] for row in rows(tmp_path))
    assert list(workspaces.iterdir()) == []


def test_other_conditions_and_other_runs_of_the_name_use_no_record(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    run = Interrupted(tmp_path, CALCULATIONS, hold_at=8, samples=2)
    with run.provider as provider:
        run.kill()
        requests = len(provider.posts)
        warmer = ("--temperature", "0.7", "--accept-changes")
        assert hermes(tmp_path, *command(tmp_path, provider, *warmer)).returncode == 0
        assert len(provider.posts) == requests + 2 * CALLS
        shutil.rmtree(tmp_path / "data")
        assert hermes(tmp_path, *command(tmp_path, provider)).returncode == 0
        assert len(provider.posts) == requests + 4 * CALLS


def test_a_sample_that_the_provider_failed_goes_on_where_it_was(tmp_path: Path) -> None:
    write_tasks(tmp_path, 3)
    refused: set[str] = set()

    def answer(body: dict[str, Any]) -> Reply:
        question = body["messages"][1]["content"]
        if turn_of(body) == 5 and question not in refused:
            refused.add(question)
            return status(400, message="no")
        turn = turn_of(body)
        return tool_calls([CALCULATIONS[turn]]) if turn < CALLS - 1 else text("It is done.")

    with FakeProvider(answer) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider), env=PRICED)
        assert done.returncode == 0, done.stderr
        assert len(provider.posts) == 3 * CALLS + 3
    state = json.loads(
        hermes(tmp_path, "batch", "status", "run", "--output-dir", str(tmp_path / "data"), "--json").stdout
    )
    assert state["cost_usd"] == pytest.approx(3 * CALLS * CALL_USD)


def test_the_budget_counts_what_an_interrupted_start_has_spent(tmp_path: Path) -> None:
    write_tasks(tmp_path, 4)
    run = Interrupted(tmp_path, CALCULATIONS, hold_at=8, samples=4)
    with run.provider as provider:
        run.kill("--max-tokens", "5", env=PRICED)
        requests = len(provider.posts)
        spent = ("--max-tokens", "5", "--max-cost", f"{4 * 8 * CALL_USD:g}")
        refused = hermes(tmp_path, *command(tmp_path, provider, *spent), env=PRICED)
        assert "$0.4800 of $0.48 spent" in last_lines(refused.stderr)[0]
        assert len(provider.posts) == requests
        more = ("--max-tokens", "5", "--max-cost", "1")
        done = hermes(tmp_path, *command(tmp_path, provider, *more), env=PRICED)
        assert done.returncode == 0, done.stderr
        assert len(provider.posts) == requests + 4 * 2
