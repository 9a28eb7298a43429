"""Only the compute thread keeps an OpenMP pool: with two, every matrix product first wakes sleeping
workers."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from hermes.engine import compute


def test_the_work_runs_in_a_thread_that_ends_with_it() -> None:
    seen: list[threading.Thread] = []

    def work() -> int:
        seen.append(threading.current_thread())
        return 7

    assert compute.run_in_fresh_thread(work) == 7
    assert seen[0] is not threading.current_thread()
    assert not seen[0].is_alive()


def test_an_error_of_the_work_is_raised_in_the_caller() -> None:
    def fail() -> None:
        raise KeyError("weights")

    with pytest.raises(KeyError, match="weights"):
        compute.run_in_fresh_thread(fail)


COUNT = """
import os
import time
from concurrent.futures import ThreadPoolExecutor
import torch
from hermes.engine import compute

def tasks():
    return len(os.listdir("/proc/self/task"))

def work():
    torch.randn(4_000_000).exp_()
    return tasks()

torch.set_num_threads(2)
before = tasks()
during = compute.run_in_fresh_thread(work) - before
deadline = time.monotonic() + 30
while tasks() > before and time.monotonic() < deadline:
    time.sleep(0.01)  # the system takes a moment to end a thread
after = tasks() - before
lone = ThreadPoolExecutor(1, initializer=compute.single_threaded)
lone.submit(tasks).result()
compute.use_all_threads(2)
lone.submit(work).result()
print(during, after, tasks() - before - 1)  # 1: itself
"""


def test_neither_a_fresh_nor_a_single_threaded_thread_keeps_a_pool() -> None:
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "0", "0"]


def test_new_threads_adopt_the_number_set_last() -> None:
    before = torch.get_num_threads()
    try:
        compute.run_in_fresh_thread(compute.single_threaded)
        compute.run_in_fresh_thread(lambda: compute.use_all_threads(3))
        assert compute.run_in_fresh_thread(torch.get_num_threads) == 3
    finally:
        torch.set_num_threads(before)
