"""Only the thread that computes keeps a team of CPU threads: with two, every product waits for a sleeper."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch

from hermes.engine import cpu_threads


def test_what_is_done_apart_is_done_in_a_thread_that_is_gone() -> None:
    seen: list[threading.Thread] = []

    def work() -> int:
        seen.append(threading.current_thread())
        return 7

    assert cpu_threads.apart(work) == 7
    assert seen[0] is not threading.current_thread()
    assert not seen[0].is_alive()


def test_its_error_is_the_callers() -> None:
    def fail() -> None:
        raise KeyError("weights")

    with pytest.raises(KeyError, match="weights"):
        cpu_threads.apart(fail)


COUNT = """
import os
import time
from concurrent.futures import ThreadPoolExecutor
import torch
from hermes.engine import cpu_threads

def tasks():
    return len(os.listdir("/proc/self/task"))

def work():
    torch.randn(4_000_000).exp_()
    return tasks()

torch.set_num_threads(2)
before = tasks()
during = cpu_threads.apart(work) - before
deadline = time.monotonic() + 30
while tasks() > before and time.monotonic() < deadline:
    time.sleep(0.01)  # the system takes a moment to end a thread
after = tasks() - before
lone = ThreadPoolExecutor(1, initializer=cpu_threads.alone)
lone.submit(tasks).result()
cpu_threads.lead(2)
lone.submit(work).result()
print(during, after, tasks() - before - 1)  # 1: itself
"""


def test_neither_what_is_done_apart_nor_a_thread_alone_leaves_a_team() -> None:
    done = subprocess.run([sys.executable, "-c", COUNT], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["2", "0", "0"]


def test_new_threads_get_what_the_leader_has() -> None:
    before = torch.get_num_threads()
    try:
        cpu_threads.apart(cpu_threads.alone)
        cpu_threads.apart(lambda: cpu_threads.lead(3))
        assert cpu_threads.apart(torch.get_num_threads) == 3
    finally:
        torch.set_num_threads(before)
