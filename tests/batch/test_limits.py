"""Runs at their limits: full and forbidden disks, spent money, and orders to stop."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import threading
from pathlib import Path
from typing import Any

import pytest

from hermes.batch.journal import read_journal
from hermes.batch.workers.run_budget import CallName, CostLedger
from hermes.cli.policy.signal import check_price
from hermes.config.load import load
from hermes.config.paths import db_path
from hermes.models.open import open_model
from hermes.sandbox import unusable_reason
from hermes.store import Filter, Reader
from tests.batch.drive import (
    CALL_USD,
    PRICED,
    command,
    last_lines,
    look_around,
    rows,
    solve,
    start,
    write_rows,
    write_tasks,
)
from tests.cli.process import failure, hermes
from tests.disks import disk
from tests.fakes.provider import FakeProvider, Reply, text, tool_calls
from tests.waiting import wait_until


def remount(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", place], check=True)


def wordy(body: dict[str, Any]) -> Reply:
    return text(f"{body['messages'][-1]['content']}: {'word ' * 4000}")


@pytest.mark.parametrize("size", ["300k", "1000k"], ids=["the journal", "the dataset"])
def test_a_full_disk_is_named_and_with_room_the_same_command_goes_on(tmp_path: Path, size: str) -> None:
    write_rows(tmp_path, *({"prompt": f"task {number}"} for number in range(40)))
    with disk(tmp_path / "data", size), FakeProvider(wordy) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, "--concurrency", "4"))
        error, fix = last_lines(done.stderr)
        assert done.returncode == 1
        assert str(tmp_path / "data/run") in error
        assert "No space left on device" in error
        assert "free space" in fix
        remount(tmp_path / "data", "size=64m")
        again = hermes(tmp_path, *command(tmp_path, provider, "--concurrency", "4"))
        assert again.returncode == 0, again.stderr
        assert 40 <= len(provider.posts) <= 40 + 4, "only what was in flight is asked again"
        assert len(rows(tmp_path)) == 40


def test_a_full_home_stops_the_run_before_it_outruns_its_record(tmp_path: Path) -> None:
    write_rows(tmp_path, *({"prompt": f"task {number}"} for number in range(60)))
    with disk(tmp_path / "home", "2m"), FakeProvider(wordy) as provider:
        done = hermes(tmp_path / "home", *command(tmp_path, provider, "--concurrency", "4"))
        error, fix = last_lines(done.stderr)
        assert done.returncode == 1
        assert str(tmp_path / "home") in error
        assert fix
        assert len(provider.posts) < 60
        remount(tmp_path / "home", "size=64m")
        again = hermes(tmp_path / "home", *command(tmp_path, provider, "--concurrency", "4"))
        assert again.returncode == 0, again.stderr
        with Reader(db_path(tmp_path / "home")) as reader:
            assert reader.count(Filter(run_id="run", stop_reason="completed")) >= 60
    assert len(rows(tmp_path)) == 60


def test_an_output_folder_that_cannot_be_is_refused_before_anything_is_paid(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    (tmp_path / "data").write_text("a file, not a folder")
    with FakeProvider(solve) as provider:
        error, fix = failure(hermes(tmp_path, *command(tmp_path, provider)), 2)
        assert provider.posts == []
    assert str(tmp_path / "data") in error
    assert "--output-dir" in fix


def test_a_write_protected_output_folder_is_refused_before_anything_is_paid(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    with disk(tmp_path / "data", "1m"), FakeProvider(solve) as provider:
        remount(tmp_path / "data", "ro")
        error, fix = failure(hermes(tmp_path, *command(tmp_path, provider)), 2)
        assert provider.posts == []
    assert "Read-only file system" in error and str(tmp_path / "data") in error
    assert "--output-dir" in fix


def test_the_money_runs_out_before_it_is_overspent_and_more_of_it_continues(tmp_path: Path) -> None:
    write_tasks(tmp_path, 10)
    flags = ("--num-workers", "1", "--max-tokens", "5")
    with FakeProvider(solve) as provider:
        cheap = hermes(tmp_path, *command(tmp_path, provider, *flags, "--max-cost", "0.1"), env=PRICED)
        assert cheap.returncode == 1
        error, fix = last_lines(cheap.stderr)
        assert "$0.1" in error and "--max-cost" in fix
        spent = len(provider.posts)
        assert 0.1 - CALL_USD < spent * CALL_USD <= 0.1 + CALL_USD
        rich = hermes(tmp_path, *command(tmp_path, provider, *flags, "--max-cost", "10"), env=PRICED)
        assert rich.returncode == 0, rich.stderr
    assert len(rows(tmp_path)) == 10
    assert {round(row["cost_usd"], 6) for row in rows(tmp_path)} == {2 * CALL_USD}


def test_the_workers_share_one_budget_and_none_of_it_is_left_over(tmp_path: Path) -> None:
    write_tasks(tmp_path, 40)
    flags = ("--num-workers", "4", "--max-tokens", "5", "--max-cost", "0.6")
    with FakeProvider(solve) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, *flags), env=PRICED)
        assert done.returncode == 1
        assert "of $0.6 spent" in last_lines(done.stderr)[0]
        assert 0.6 <= len(provider.posts) * CALL_USD <= 0.6 + CALL_USD
    assert len(rows(tmp_path)) == len(list(read_journal(tmp_path / "data/run/journal")))


def test_one_long_sample_has_the_whole_budget(tmp_path: Path) -> None:
    write_tasks(tmp_path, 1)
    flags = ("--num-workers", "4", "--max-tokens", "5", "--max-turns", "60", "--max-cost", "0.3")
    ask = tool_calls([("calculator", {"expression": "1 + 1"})])
    with FakeProvider([ask], loop=True) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, *flags), env=PRICED)
        assert done.returncode == 1, done.stderr
        assert 0.3 <= len(provider.posts) * CALL_USD <= 0.3 + CALL_USD


@pytest.mark.parametrize("seed", range(20))
def test_a_ledger_spends_its_limit_and_at_most_one_call_more(seed: int) -> None:
    print(f"seed {seed}")
    draw = random.Random(seed)
    ledger = CostLedger(limit_usd=draw.uniform(1, 50))
    workers = [f"w{number}" for number in range(draw.randint(1, 6))]
    in_flight: dict[CallName, float] = {}
    worst_usd, decided, dead_usd = 0.0, 0, 0.0
    for number in range(400):
        call, most_usd = CallName(draw.choice(workers), number), draw.uniform(0.01, 2)
        worst_usd = max(worst_usd, most_usd)
        ledger.reserve(call, most_usd)
        for allowed, refusal in ledger.decide():
            decided += 1
            if refusal is None:
                in_flight[allowed] = draw.uniform(0, 0.01)
            else:
                assert ledger.spent_usd is not None and ledger.spent_usd >= ledger.limit_usd
        if in_flight and draw.random() < 0.9:
            ended = draw.choice(list(in_flight))
            ledger.settle(ended, draw.uniform(0, 2) * 0.01 + in_flight.pop(ended))
        if draw.random() < 0.02:
            worker = draw.choice(workers)
            lost = [call for call in in_flight if call.worker == worker]
            dead_usd += sum(in_flight.pop(call) for call in lost)
            ledger.end_worker(worker)
    assert ledger.spent_usd is not None
    assert ledger.spent_usd <= ledger.limit_usd + worst_usd
    while in_flight:  # nothing waits for ever
        ended, _ = in_flight.popitem()
        ledger.settle(ended, 0.0)
        in_flight |= {call: 0.0 for call, refusal in ledger.decide() if refusal is None}
    ledger.reserve(CallName("last", 0), 1.0)
    assert len(list(ledger.decide())) == 1


def test_what_a_dead_worker_had_left_goes_to_the_next_one(tmp_path: Path) -> None:
    write_tasks(tmp_path, 6)
    (tmp_path / "poison.py").write_text(
        "import os\n"
        "def score(ctx):\n"
        "    if 'Compute 3 ' in ctx.row.prompts[0]: os.kill(os.getpid(), 9)\n"
        "    return 1.0\n"
    )
    flags = ("--reward", f"{tmp_path / 'poison.py'}:score", "--max-cost", "0.9")
    with FakeProvider(solve) as provider:
        done = hermes(tmp_path, *command(tmp_path, provider, *flags), env=PRICED)
        assert len(provider.posts) * CALL_USD <= 0.9
    assert "used up" not in done.stderr
    assert len(rows(tmp_path)) == 5
    assert "WorkerDied: 3 times" in rows(tmp_path, file="failed.jsonl")[0]["cause"]


def test_a_budget_without_a_price_is_refused(tmp_path: Path) -> None:
    write_tasks(tmp_path, 2)
    with FakeProvider(solve) as provider:
        words = command(tmp_path, provider, "--max-cost", "1")
        done = hermes(tmp_path, *words, env={"OPENAI_API_KEY": "sk-of-a-paid-account"})
        assert provider.posts == []
    error, fix = failure(done, 2)
    assert "the price of custom/m is unknown" in error
    assert "prices" in fix


def test_a_model_on_loopback_that_takes_no_key_keeps_every_cost_limit(tmp_path: Path) -> None:
    """Batches, questions and improvements of texts have one rule: it costs nothing."""
    write_tasks(tmp_path, 2)
    with FakeProvider(solve) as provider:
        words = command(tmp_path, provider, "--max-cost", "0.01")
        done = hermes(tmp_path, *words, env={"OPENAI_API_KEY": "not-needed"})
        assert done.returncode == 0, done.stderr
        assert [row["cost_usd"] for row in rows(tmp_path)] == [0.0, 0.0]
        limited = {"HERMES_LIMITS__MAX_COST_USD": "0.01"}
        words = ("-q", "Compute 3 + 3", "--model", "m", "--base-url", provider.base_url, "--toolsets", "math")
        asked = hermes(tmp_path, *words, env=limited)
        assert asked.returncode == 0 and "The answer is" in asked.stdout, asked.stderr
        model = open_model(load(environ={"HERMES_HOME": str(tmp_path)}), "m", provider.base_url)
        check_price(load(environ={}), 0.01, model)


def test_sigterm_leaves_no_process_behind_and_a_run_that_continues(tmp_path: Path) -> None:
    if reason := unusable_reason("bubblewrap"):
        pytest.skip(reason)
    write_rows(tmp_path, *({"prompt": f"sleep 0.{number % 10 + 1}; echo {number}"} for number in range(20)))
    flags = ("--toolsets", "terminal", "--sandbox", "bubblewrap", "--concurrency", "6")
    stopped = threading.Event()

    def answer(body: dict[str, Any]) -> Reply:
        if len(provider.posts) < 8 or stopped.is_set() or body["messages"][-1]["role"] == "tool":
            return look_around(body)
        return tool_calls([("terminal", {"command": "sleep 600"})])

    with FakeProvider(answer) as provider:
        process = start(tmp_path, *command(tmp_path, provider, *flags))
        wait_until(lambda: any("sleep 600" in command_line(pid) for pid in descendants(process.pid)))
        family = descendants(process.pid)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
        assert process.returncode == 1, err
        assert json.loads(out.splitlines()[-1])["stopped"]
        wait_gone(family)
        stopped.set()
        changed = ("--temperature", "0.5", "--accept-changes")  # else the recorded 'sleep 600' is run again
        again = hermes(tmp_path, *command(tmp_path, provider, *flags, *changed))
        assert again.returncode == 0, again.stderr
    answers = [row["conversations"][-1]["value"].strip() for row in rows(tmp_path)]
    assert answers == [str(number) for number in range(20)]


def descendants(pid: int) -> dict[int, str]:
    """Every process below `pid`, with the time it started, which tells it from a later one of its number."""
    parents: dict[int, tuple[int, str]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (found := stat_of(int(entry.name))):
            parents[int(entry.name)] = found
    below = {pid}
    while more := {child for child, (parent, _) in parents.items() if parent in below} - below:
        below |= more
    return {child: parents[child][1] for child in below - {pid}}


def command_line(pid: int) -> str:
    """Empty for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def stat_of(pid: int) -> tuple[int, str] | None:
    """(parent, start time); None for one that is gone or only waits to be buried."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else (int(fields[1]), fields[19])


def wait_gone(family: dict[int, str]) -> None:
    def runs(pid: int, began: str) -> bool:
        stat = stat_of(pid)
        return stat is not None and stat[1] == began

    wait_until(lambda: not any(runs(pid, began) for pid, began in family.items()))
