"""Group commit: many small writes, one flush. A thread takes everything that is queued and flushes it
together.

`submit` returns a future, which the flush resolves. What was submitted is flushed even if the caller stops
waiting, and closing flushes everything first.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

Item = TypeVar("Item")
_MOST_AT_ONCE = 512


class ClosedError(Exception):
    """Something was submitted after `close`."""


class GroupCommit(Generic[Item]):
    def __init__(self, name: str, flush: Callable[[list[tuple[Item, Future[None]]]], None]) -> None:
        """`flush` runs in a thread called `name`; it must settle every future it is given."""
        self._flush = flush
        self._queue: queue.SimpleQueue[tuple[Item, Future[None]] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def submit(self, item: Item) -> Future[None]:
        """Safe to call from any thread; ClosedError after `close`."""
        future: Future[None] = Future()
        future.set_running_or_notify_cancel()  # from here on it cannot be cancelled
        with self._lock:
            if self._closed:
                raise ClosedError
            self._queue.put((item, future))
        return future

    def close(self) -> bool:
        """Flushes what is queued and ends the thread; False if that was done before."""
        with self._lock:
            if self._closed:
                return False
            self._closed = True
            self._queue.put(None)
        self._thread.join()
        return True

    def _work(self) -> None:
        closing = False
        while not closing:
            batch: list[tuple[Item, Future[None]]] = []
            item = self._queue.get()
            while item is not None:
                batch.append(item)
                if len(batch) >= _MOST_AT_ONCE or self._queue.empty():
                    break
                item = self._queue.get()
            closing = item is None
            if batch:
                self._flush(batch)
