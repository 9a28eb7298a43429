"""The compute thread, which owns the model: training and sampling share it by the time they have used.

Other threads post functions to it and get futures back. An error in a call or a request fails only that one's
future. The thread ends only when it is closed, and every future is resolved then. A slice of training pauses
between layers, so that requests for samples do not wait for the whole pass of a long sequence.

Only the compute thread may keep a pool of OpenMP threads. OpenMP gives every thread that runs a torch
operation a pool of its own, and a decode step hands work to the pool a thousand times. Idle workers spin for
a moment (`models/local/torch_threads.py`), so that this costs little. But once a process has more pool
threads than cores, workers sleep at once and every matrix product has to wake them first: a step of 8 rows
takes 70 ms instead of 54. So no other thread of the engine keeps a pool. Threads of the caller are not
managed here.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal, TypeVar

import torch

from hermes.engine.info import EngineClosedError
from hermes.engine.memory import FreedMemory
from hermes.engine.sampling.scheduler import SamplingScheduler
from hermes.engine.schedule import AdapterQueues, FairShare, ScheduledCall, reported_error


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


T = TypeVar("T")

Kind = Literal["sampling", "training"]

_PAUSE_S = 0.25
"""Training goes on for at least so long before it pauses."""


class Compute:
    def __init__(self, sampler: SamplingScheduler, begin: Callable[[], None]) -> None:
        """`begin` is called first in the thread."""
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._sampler = sampler
        self._begin = begin
        self.queues = AdapterQueues(self.post)
        self._share: FairShare[Kind] = FairShare()
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="hermes-engine", daemon=True)
        self._resumed_s = 0.0
        """When the running slice of training began, or went on after a pause."""
        self.spent_s: dict[Kind, float] = {"sampling": 0.0, "training": 0.0}

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends everything that runs or waits; returns when the thread has ended."""
        with self._lock:
            self._closed = True
        self._inbox.put(lambda: None)  # wakes the thread
        if self._thread.is_alive():
            self._thread.join()
        else:
            self._end_everything()

    def post(self, function: Callable[[], None]) -> bool:
        """Runs the function in the compute thread between slices of work. False if the thread is closed."""
        with self._lock:
            if not self._closed:
                self._inbox.put(function)
            return not self._closed

    def submit(self, key: str, call: ScheduledCall[T]) -> Future[T]:
        """Appends a call to its queue."""
        if not self.post(lambda: self.queues.add(key, call)):
            call.end(closed_error())
        return call.future

    def _run(self) -> None:
        self._begin()
        freed = FreedMemory()
        while not self._closed:
            freed.check()
            idle = not self._ready()
            if idle:
                freed.trim_if_grown()  # nothing runs that would use it again
            self._read_inbox(wait=idle)
            ready = self._ready()  # what was read may have ended the only work there was
            if ready and not self._closed:
                self._run_slice(self._share.pick(ready))
        self._end_everything()

    def _ready(self) -> list[Kind]:
        ready: list[Kind] = []
        if self._sampler.busy:
            ready.append("sampling")
        if self.queues.runnable:
            ready.append("training")
        return ready

    def _read_inbox(self, wait: bool) -> None:
        try:
            if wait:
                self._inbox.get()()
            while True:
                self._inbox.get_nowait()()
        except queue.Empty:
            pass

    def pause_training(self) -> None:
        """Samples until it is training's turn again; called by a slice of training.

        EngineClosedError, or the error of a call that was ended meanwhile: the slice has to end.
        """
        now_s = time.perf_counter()
        if now_s - self._resumed_s < _PAUSE_S:
            return
        self._charge("training", now_s - self._resumed_s)
        self._read_inbox(wait=False)
        turns: tuple[Kind, ...] = ("sampling", "training")
        while self._sampler.busy and not self._closed and self._share.pick(turns) == "sampling":
            self._step_sampler()
            self._read_inbox(wait=False)
        self._resumed_s = time.perf_counter()
        if self._closed:
            raise closed_error()
        self.queues.paused(self._resumed_s - now_s)

    def _run_slice(self, kind: Kind) -> None:
        if kind == "sampling":
            self._step_sampler()
            return
        self._resumed_s = time.perf_counter()
        self.queues.run_slice()
        self._charge("training", time.perf_counter() - self._resumed_s)

    def _step_sampler(self) -> None:
        began_s = time.perf_counter()
        try:
            self._sampler.step()
        except Exception as error:  # noqa: BLE001 - it becomes the result of everything that was running
            self._sampler.end_all(reported_error(error, "the running batch"))
        self._charge("sampling", time.perf_counter() - began_s)

    def _charge(self, kind: Kind, seconds: float) -> None:
        self._share.charge(kind, seconds)
        self.spent_s[kind] += seconds

    def _end_everything(self) -> None:
        self._read_inbox(wait=False)
        self.queues.drop_all(closed_error())
        self._sampler.end_all(closed_error())


def closed_error() -> EngineClosedError:
    return EngineClosedError(
        "The engine was closed before this was done.", "Send it again when the engine is running."
    )
