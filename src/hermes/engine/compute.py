"""The one thread that owns the model: training and sampling take turns on it by the time they have used.

Everybody else posts small functions to it and gets futures back. Whatever goes wrong in a call or a request
is that one's result; the thread itself ends only when it is closed, and then nothing is left without an
answer.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Literal, TypeVar

from hermes.engine.info import EngineClosedError
from hermes.engine.sampling.scheduler import SamplingScheduler
from hermes.engine.schedule import AdapterQueues, FairShare, ScheduledCall, describe

T = TypeVar("T")

Kind = Literal["sampling", "training"]


class Compute:
    def __init__(self, sampler: SamplingScheduler, begin: Callable[[], None]) -> None:
        """`begin` is called in the thread before anything else."""
        self._inbox: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._sampler = sampler
        self._begin = begin
        self.lines = AdapterQueues(self.post)
        self._share: FairShare[Kind] = FairShare()
        self._closed = False
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="hermes-engine", daemon=True)
        self.spent_s: dict[Kind, float] = {"sampling": 0.0, "training": 0.0}

    def start(self) -> None:
        self._thread.start()

    def close(self) -> None:
        """Ends everything that is under way or waiting; returns when the thread is gone."""
        with self._lock:
            self._closed = True
        self._inbox.put(lambda: None)  # wakes it
        if self._thread.is_alive():
            self._thread.join()
        else:
            self._end_everything()

    def post(self, function: Callable[[], None]) -> bool:
        """To be run in the compute thread, between slices of work. False, and never, once it is closed."""
        with self._lock:
            if not self._closed:
                self._inbox.put(function)
            return not self._closed

    def submit(self, key: str, call: ScheduledCall[T]) -> Future[T]:
        """A call at the end of its line."""
        if not self.post(lambda: self.lines.add(key, call)):
            call.end(closed())
        return call.future

    def _run(self) -> None:
        self._begin()
        while not self._closed:
            ready = self._ready()
            self._read_inbox(wait=not ready)
            if ready and not self._closed:
                self._turn(self._share.pick(ready))
        self._end_everything()

    def _ready(self) -> list[Kind]:
        ready: list[Kind] = []
        if self._sampler.busy:
            ready.append("sampling")
        if self.lines.runnable:
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

    def _turn(self, kind: Kind) -> None:
        began = time.perf_counter()
        if kind == "training":
            self.lines.turn()
        else:
            try:
                self._sampler.step()
            except Exception as error:  # noqa: BLE001 - handed on: it becomes the result of whatever was running
                self._sampler.end_all(describe(error, "the running batch"))
        used = time.perf_counter() - began
        self._share.charge(kind, used)
        self.spent_s[kind] += used

    def _end_everything(self) -> None:
        self._read_inbox(wait=False)
        self.lines.drop_all(closed())
        self._sampler.end_all(closed())


def closed() -> EngineClosedError:
    return EngineClosedError(
        "The engine was closed before this was done.", "Send it again once it is running."
    )
