"""A provider that fails in every way it can: nothing is lost, little paid twice, and it is not pestered."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from hermes.batch.journal import SampleState, read_journal
from hermes.config.paths import db_path
from hermes.store import Filter, Reader
from tests.batch.drive import command, rows, solve, start, write_tasks
from tests.fakes.provider import FakeProvider, Reply, bad_json, cut_stream, hang, held, status

RETRY_AFTER_S = 0.05
TIMEOUT_S = "1.5"
FAULTS = (
    (0.20, "429"),
    (0.10, "5xx"),
    (0.05, "hang"),
    (0.05, "cut"),
    (0.02, "garbled"),
)
"""How many of a hundred calls meet which fault."""


class Chaos:
    """Answers like `solve`, but the first attempt at some calls fails. Which, and how, is drawn by a seed."""

    def __init__(self, seed: int) -> None:
        self.faults: Counter[str] = Counter()
        self.refused_at_s: dict[str, float] = {}
        """When a call was last told to wait."""
        self.too_early: list[str] = []
        """Calls that came back before the time they were told."""
        self._seed = seed
        self._seen: set[str] = set()

    def __call__(self, body: dict[str, Any]) -> Reply:
        call = json.dumps([body["messages"][-1]["role"], body["messages"][-1]["content"]])
        if call in self.refused_at_s and time.monotonic() < self.refused_at_s[call] + RETRY_AFTER_S:
            self.too_early.append(call)
        fault = None if call in self._seen else self._draw(call)
        self._seen.add(call)
        if fault is None:
            return solve(body)
        self.faults[fault] += 1
        if fault == "429":
            self.refused_at_s[call] = time.monotonic()
            return status(429, retry_after=RETRY_AFTER_S)
        broken = {"5xx": status(503), "hang": hang(60), "cut": cut_stream(1), "garbled": bad_json()}
        return broken[fault]

    def _draw(self, call: str) -> str | None:
        drawn = random.Random(f"{self._seed}/{call}").random()
        for share, fault in FAULTS:
            if drawn < share:
                return fault
            drawn -= share
        return None


def survive(folder: Path, tasks: int, seed: int) -> None:
    """Runs `tasks` tasks of two model calls each through the chaos, and holds it to every promise."""
    write_tasks(folder, tasks)
    chaos = Chaos(seed)
    with FakeProvider(chaos) as provider:
        environ = {
            "HERMES_PROVIDERS__CUSTOM__BASE_URL": provider.base_url,
            "HERMES_PROVIDERS__CUSTOM__TIMEOUT_S": TIMEOUT_S,
        }
        flags = ("--num-workers", "1", "--max-tries", "10")
        process = start(folder, *command(folder, provider, *flags), env=environ)
        out, err = process.communicate()
        requests = len(provider.posts)
    assert process.returncode == 0, err
    report = json.loads(out)
    assert (report["planned"], report["finished"], report["failed"]) == (tasks, tasks, {})
    answers = [row["conversations"][-1]["value"] for row in rows(folder)]
    assert answers == [f"The answer is {2 * number}." for number in range(tasks)]
    assert rows(folder, file="failed.jsonl") == []
    assert set(chaos.faults) == {fault for _, fault in FAULTS}, "the chaos was not complete"
    assert requests <= 1.5 * tasks * 2  # 42 % of the calls need a second attempt: 1.42 is the least
    assert chaos.too_early == []
    assert report["worker_deaths"] == 0
    check_record(folder, tasks)


def check_record(folder: Path, tasks: int) -> None:
    """Every try ended in a state with a type, in the journal and in the store."""
    entries = list(read_journal(folder / "data/run/journal"))
    failed = [entry for entry in entries if entry.state is SampleState.FAILED]
    assert Counter(entry.state for entry in entries)[SampleState.DONE] == tasks
    assert {str(entry.reason).partition(":")[0] for entry in failed} <= {"ProviderError"}
    with Reader(db_path(folder)) as reader:
        assert reader.count(Filter(run_id="run", stop_reason="completed")) == tasks
        assert reader.count(Filter(run_id="run", stop_reason="error")) == len(failed)
        assert reader.count(Filter(run_id="run")) == tasks + len(failed)


def test_all_tasks_survive_a_chaotic_provider(tmp_path: Path) -> None:
    survive(tmp_path, 120, seed=1)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_tasks_survive_a_chaotic_provider(tmp_path: Path) -> None:
    survive(tmp_path, 1000, seed=2)


def test_one_call_that_is_told_to_wait_holds_back_all_calls_of_its_worker(tmp_path: Path) -> None:
    """All eight have asked before one is refused, and the refusal comes before the other answers."""
    write_tasks(tmp_path, 8)
    all_asked, refused = threading.Event(), threading.Event()

    def refuse_one(body: dict[str, Any]) -> Reply:
        if all_asked.is_set():
            return held(refused, solve(body))
        if len(provider.posts) == 8:
            all_asked.set()
        if body["messages"][-1]["content"].startswith("Compute 3 "):
            return held(all_asked, status(429, retry_after=1))
        return held(refused, solve(body))

    with FakeProvider(refuse_one) as provider:
        process = start(tmp_path, *command(tmp_path, provider, "--num-workers", "1", "--concurrency", "8"))
        all_asked.wait(60)
        time.sleep(0.5)  # the refusal has long arrived when the other answers come
        assert len(provider.posts) == 8
        refused.set()
        _, err = process.communicate()
        assert process.returncode == 0, err
        assert len(provider.posts) == 17
        told = provider.posts[7].arrived_s
        assert all(post.arrived_s >= told + 1 for post in provider.posts[8:])
