"""Waiting for asyncio tasks: until all are done, until the first fails, until a deadline or an event; and
for code that blocks the event loop, until a signal."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Collection, Coroutine, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from contextvars import ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
STOP_SIGNAL: ContextVar[Future[None] | None] = ContextVar("STOP_SIGNAL", default=None)
"""Done when a signal has asked the environment to stop. A thread sets it: it counts in blocking code, too."""


async def gather_or_cancel(coroutines: Sequence[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order, or the first error; the other tasks are cancelled then."""
    tasks = [asyncio.ensure_future(coroutine) for coroutine in coroutines]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def wait_all(tasks: Collection[asyncio.Task[Any]], timeout_s: float | None = None) -> None:
    """Returns when all tasks have ended or the time is up. Cancelling the wait does not cancel the tasks."""
    if not tasks:
        return
    done, _ = await asyncio.wait(list(tasks), timeout=timeout_s)
    for task in done:
        if not task.cancelled():
            task.exception()  # marks it as retrieved, so that asyncio does not log it


async def wait_first(task: asyncio.Task[Any], event: asyncio.Event, timeout_s: float | None = None) -> None:
    """Returns when the task has ended, the event is set, or the time is up."""
    event_task = asyncio.create_task(event.wait())
    await asyncio.wait({task, event_task}, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
    event_task.cancel()


async def run_within(timeout_s: float, coroutine: Coroutine[Any, Any, None], unless: asyncio.Event) -> None:
    """Runs the coroutine and cancels it when the time is up or `unless` is set."""
    task = asyncio.create_task(coroutine)
    await wait_first(task, unless, timeout_s)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def cancel_all(tasks: Collection[asyncio.Task[Any]], timeout_s: float) -> None:
    """Cancels the tasks and gives them some time to clean up."""
    for task in tasks:
        task.cancel()
    await wait_all(tasks, timeout_s)


def run_until_signal(function: Callable[[], T]) -> T:
    """The result of a function that may block for minutes; CancelledError as soon as a signal arrives.

    The function then goes on in a thread that does not keep the process alive.
    """
    signalled = STOP_SIGNAL.get()
    if signalled is None:
        return function()
    result: Future[T] = Future()
    threading.Thread(target=_settle, args=(function, result), daemon=True).start()
    either: tuple[Future[Any], ...] = (result, signalled)
    wait(either, return_when=FIRST_COMPLETED)
    if not result.done():
        raise asyncio.CancelledError
    return result.result()


def _settle(function: Callable[[], T], result: Future[T]) -> None:
    try:
        result.set_result(function())
    except BaseException as error:  # noqa: BLE001 - whoever waits for the result gets it
        result.set_exception(error)
