"""OpenMP thread pools: only the compute thread may keep one.

OpenMP gives every thread that runs a torch operation a pool of its own, and a decode step hands work to the
pool a thousand times. Idle workers spin for a moment (`models/local/torch_threads.py`), so that this costs
little. But once a process has more pool threads than cores, workers sleep at once and every matrix product
has to wake them first: a step of 8 rows takes 70 ms instead of 54. So no other thread of the engine keeps a
pool. Threads of the caller are not managed here.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

T = TypeVar("T")


def run_in_fresh_thread(work: Callable[[], T]) -> T:
    """Runs `work` in a new thread, whose pool ends with it."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again in the waiting thread
            done.set_exception(error)

    thread = threading.Thread(target=run, name="hermes-engine-load", daemon=True)
    thread.start()
    try:
        return done.result()
    finally:
        if done.done():
            thread.join()


def use_all_threads(threads: int) -> None:
    """This thread computes with a pool of `threads`."""
    torch.set_num_threads(threads)


def single_threaded() -> None:
    """This thread computes without a pool."""
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread's first read adopts the number set last in any thread: read it now
