"""One team of CPU threads for the whole process, and it belongs to the thread that computes.

Every operation of torch hands work to its thread's team, a thousand times in a decode step. Workers that wait
for the next hand-over spin for a moment (`models/local/torch_threads.py`), so that it costs next to nothing;
but once a process has more threads in teams than cores, they sleep at once, and each product first wakes
somebody: a step of 8 rows takes 70 ms instead of 54. So no other thread of the engine's may keep a
team. The caller's threads are its own affair.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

import torch

T = TypeVar("T")


def apart(work: Callable[[], T]) -> T:
    """Does it in a thread of its own, whose team is gone with it."""
    done: Future[T] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:  # noqa: BLE001 - raised again by whoever waits
            done.set_exception(error)

    thread = threading.Thread(target=run, name="hermes-engine-load", daemon=True)
    thread.start()
    try:
        return done.result()
    finally:
        if done.done():
            thread.join()


def lead(threads: int) -> None:
    """This thread computes, with so many."""
    torch.set_num_threads(threads)


def alone() -> None:
    """This thread has no team."""
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread's first look takes over what was last set anywhere: now, not later
