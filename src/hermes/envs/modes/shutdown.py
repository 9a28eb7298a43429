"""Signals as a stop request: the first one ends a run in order, the second one ends it immediately.

Signals are counted by a thread that reads Python's wakeup descriptor, so that they count while the
environment's code blocks the event loop. A handler in Python would not do: it runs in the main thread, and
the system may deliver a second signal to another one, which does not end a `time.sleep` of the main thread.
If the process is still alive some seconds after the second signal, it is ended.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import FrameType
from typing import Any

from hermes.envs.concurrency import wait_all, wait_first

logger = logging.getLogger(__name__)

_SIGNALS = (signal.SIGTERM, signal.SIGINT)
_EXIT_TIMEOUT_S = 6.0
"""How long the process may take to exit after the second signal."""


class StopRequest:
    """The request of the signals so far."""

    def __init__(self) -> None:
        self.requested = asyncio.Event()
        """End in order: start nothing new, finish and deliver what is running."""
        self.immediate = asyncio.Event()
        """Wait for nothing."""
        self.signalled: Future[None] = Future()
        """Done with the first signal, also while the event loop is blocked."""

    async def run_unless_requested(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Runs the coroutine; it is cancelled when a stop is requested."""
        task = asyncio.create_task(coroutine)
        await wait_first(task, self.requested)
        if not task.done():
            task.cancel()
            await wait_all([task])
            return
        await task


@contextmanager
def stop_on_signals(stop: StopRequest, save_before_exit: Callable[[], None]) -> Iterator[None]:
    """SIGTERM and SIGINT set `stop`. Outside of the main thread no handler can be installed.

    `save_before_exit` runs before a process that does not end by itself is ended; it must not need the loop.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    loop = asyncio.get_running_loop()
    reader, writer = socket.socketpair()
    writer.setblocking(False)
    counting = threading.Thread(
        target=_count_signals, args=(reader, loop, stop, save_before_exit), name="signals", daemon=True
    )
    previous_wakeup = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    previous = {number: signal.signal(number, _ignore) for number in _SIGNALS}
    counting.start()
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
        signal.set_wakeup_fd(previous_wakeup)
        writer.close()
        counting.join()


def _ignore(number: int, frame: FrameType | None) -> None:
    """The number was written to the wakeup descriptor; without a handler the signal would end the process."""


def _count_signals(
    reader: socket.socket,
    loop: asyncio.AbstractEventLoop,
    stop: StopRequest,
    save_before_exit: Callable[[], None],
) -> None:
    """Until the other end is closed."""
    received = 0
    with reader:
        while numbers := reader.recv(1):
            if numbers[0] not in _SIGNALS:
                continue
            received += 1
            if received == 1:
                stop.signalled.set_result(None)
            loop.call_soon_threadsafe((stop.requested if received == 1 else stop.immediate).set)
            if received == 2:
                timer = threading.Timer(_EXIT_TIMEOUT_S, _end_process, [save_before_exit])
                timer.daemon = True
                timer.start()


def _end_process(save_before_exit: Callable[[], None]) -> None:
    logger.error("the process is still busy %g s after the second signal and is ended", _EXIT_TIMEOUT_S)
    save_before_exit()
    os._exit(1)
