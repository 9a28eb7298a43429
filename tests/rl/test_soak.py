"""A long run: memory, descriptors, disk and logs do not grow with the steps.

HERMES_SOAK_S is how long it trains, in seconds (default: half an hour).
"""

from __future__ import annotations

import contextlib
import json
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from hermes.rl.run import RlRun, RunState, last_step
from tests.rl.conftest import MakeHome
from tests.rl.world import answer, start_run
from tests.waiting import wait_until

DURATION_S = float(os.environ.get("HERMES_SOAK_S", "1800"))
READINGS = 60
LEAST_STEPS = 12
"""Fewer prove nothing."""
MEMORY_GROWTH, MEMORY_MARGIN = 1.08, 24 << 20
"""Allocators return memory late; a leak of a hundred kilobytes a step is more than this within the run."""
DESCRIPTORS_MARGIN = 6
DISK_MARGIN = 64 << 10
"""Less than two adapters of the test's model."""
LOG_BYTES_A_STEP = 4096
JOURNAL_BYTES_A_STEP = 16 << 10
"""The groups of a step. The API starts a new segment after 64 MiB, and then deletes what is trained."""


@dataclass(frozen=True)
class Usage:
    step: int
    memory_bytes: dict[str, int]
    """By process."""
    descriptors: dict[str, int]
    disk_bytes: int
    """Of the run's folder, without the metrics, which have a line a step, and the journal of the API."""
    journal_bytes: int
    log_bytes: int


def processes(run: RlRun) -> dict[str, int]:
    status = run.status()
    pids = {name: part.process_id.pid for name, part in status.processes.items() if part.process_id}
    return {**pids, "supervisor": status.supervisor.pid} if status.supervisor else pids


def resident_bytes(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def size_bytes(folder: Path) -> int:
    """Files and folders that are deleted meanwhile count as nothing."""
    total = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += (Path(place) / name).stat().st_size
    return total


def read_usage(run: RlRun) -> Usage:
    pids, journal_bytes = processes(run), size_bytes(run.folder / "api")
    return Usage(
        last_step(run),
        {name: resident_bytes(pid) for name, pid in pids.items()},
        {name: len(list(Path(f"/proc/{pid}/fd").iterdir())) for name, pid in pids.items()},
        size_bytes(run.folder) - run.metrics_path.stat().st_size - journal_bytes,
        journal_bytes,
        size_bytes(run.log_path("api").parent),
    )


def quarters(usages: list[Usage], value: Callable[[Usage], int]) -> tuple[float, float]:
    """The second quarter's largest value and the last one's median: growth that lasts raises the latter."""
    size = len(usages) // 4
    before = max(value(usage) for usage in usages[size : 2 * size])
    return float(before), statistics.median(value(usage) for usage in usages[-size:])


def check_flat(usages: list[Usage]) -> None:
    for name in usages[0].memory_bytes:
        before, after = quarters(usages, lambda usage, name=name: usage.memory_bytes[name])
        assert after <= MEMORY_GROWTH * before + MEMORY_MARGIN, f"memory of {name}: {before} → {after}"
        before, after = quarters(usages, lambda usage, name=name: usage.descriptors[name])
        assert after <= before + DESCRIPTORS_MARGIN, f"descriptors of {name}: {before} → {after}"
    before, after = quarters(usages, lambda usage: usage.disk_bytes)
    assert after <= before + DISK_MARGIN, f"disk: {before:.4g} → {after:.4g} bytes"
    middle, last = usages[len(usages) // 2], usages[-1]
    steps = last.step - middle.step
    for name, grown, most in (
        ("logs", last.log_bytes - middle.log_bytes, LOG_BYTES_A_STEP),
        ("journal", last.journal_bytes - middle.journal_bytes, JOURNAL_BYTES_A_STEP),
    ):
        assert grown <= most * (steps + 1), f"{name}: {grown} bytes in {steps} steps"


def leaking(index: int, **changes: int) -> Usage:
    values = {
        "memory": 200 << 20,
        "descriptors": 40,
        "disk": 5 << 20,
        "journal": 10_000 * index,
        "log": 1000 * index,
        **changes,
    }
    by_process = {"env": values["memory"]}, {"env": values["descriptors"]}
    return Usage(index, *by_process, values["disk"], values["journal"], values["log"])


def test_a_leak_of_any_kind_is_noticed() -> None:
    check_flat([leaking(index) for index in range(READINGS)])
    leaks = {
        "memory of env": lambda n: {"memory": (200 << 20) + n * (2 << 20)},
        "descriptors of env": lambda n: {"descriptors": 40 + n},
        "disk": lambda n: {"disk": (5 << 20) + n * (4 << 10)},
        "journal": lambda n: {"journal": n * 40_000},
        "logs": lambda n: {"log": n * 50_000},
    }
    for what, leak in leaks.items():
        with pytest.raises(AssertionError, match=what):
            check_flat([leaking(index, **leak(index)) for index in range(READINGS)])


@pytest.mark.slow
@pytest.mark.timeout(DURATION_S + 1800)
def test_a_long_run_stays_flat(home_with: MakeHome) -> None:
    home = home_with(total_steps=1_000_000, save_checkpoint_interval=5)
    run = start_run(home)
    wait_until(lambda: last_step(run) >= 2)
    usages = []
    until_s = time.monotonic() + DURATION_S
    while time.monotonic() < until_s or usages[-1].step < LEAST_STEPS:
        assert run.status().state is RunState.RUNNING, run.status().reason
        usages.append(read_usage(run))
        time.sleep(DURATION_S / READINGS)
    causes = answer(home, "rl", "doctor", run.run_id)
    answer(home, "rl", "stop", run.run_id, "--now")
    print(json.dumps([vars(usages[0]), vars(usages[len(usages) // 2]), vars(usages[-1])]))
    check_flat(usages)
    assert not [cause for cause in causes if "fail" in cause["cause"]], causes
    assert not any(process.starts > 1 for process in run.status().processes.values()), "nothing was restarted"
