"""How serving ends: signals, the work in flight, what is delivered and what is counted.

The first SIGTERM or Ctrl-C ends it in order. No new work is begun; groups in the making have
`stop_patience_s` seconds, then they are dropped and counted; groups that are made are delivered, for as long
again, or written to a file that the log names. A second signal waits for nothing: what is in the making is
dropped, what is not delivered is written to the file, and if the environment's own code holds the process
up, it is ended all the same.
"""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import Collection, Coroutine, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Any

from hermes.envs.failures import STOPPED, EnvironmentRunError

if TYPE_CHECKING:
    from hermes.envs.base import BaseEnv

logger = logging.getLogger(__name__)

_LEAVE_S = 3.0
"""How long a group that was told to stop may tidy up."""
_AT_ONCE_S = 6.0
"""How long the process may still take after the second signal."""


class Stop:
    """What the signals have asked for so far."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        """To end in order."""
        self.at_once = asyncio.Event()
        """Not to wait any longer."""

    async def unless_asked(self, work: Coroutine[Any, Any, None]) -> None:
        """Does the work, or leaves it when asked to stop."""
        task = asyncio.create_task(work)
        await _first(task, self.asked)
        if not task.done():
            task.cancel()
            await _settled([task])
            return
        await task


@contextmanager
def listening(env: BaseEnv, stop: Stop) -> Iterator[None]:
    """Signals set `stop`, even while the environment's code keeps the event loop from its turn."""
    if threading.current_thread() is not threading.main_thread():
        yield  # whoever runs us in a thread has the signals
        return
    loop = asyncio.get_running_loop()
    asked = 0

    def handle(number: int, frame: FrameType | None) -> None:
        nonlocal asked
        asked += 1
        loop.call_soon_threadsafe((stop.asked if asked == 1 else stop.at_once).set)
        if asked == 2:
            last_resort = threading.Timer(_AT_ONCE_S, _end_process, [env])
            last_resort.daemon = True
            last_resort.start()

    former = {number: signal.signal(number, handle) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _end_process(env: BaseEnv) -> None:
    """The environment's code does not let go: nothing but the groups is worth saving."""
    logger.error("still busy %g s after the second signal; ending the process", _AT_ONCE_S)
    if env.link is not None:
        env.link.spool(env.spool_path())
    os._exit(1)


async def wind_down(env: BaseEnv, stop: Stop, finished: bool) -> None:
    """Ends the work in flight and delivers what is made. Not `finished`: an error ends the run at once."""
    assert env.link is not None, "called after the link was made"
    try:
        if finished and stop.asked.is_set():
            logger.info("stopping: %d groups are in the making", len(env.running_items))
            await _within(env.config.stop_patience_s, _settled(env.workers), stop.at_once)
        await _drop_unfinished(env)
        if finished and not stop.asked.is_set():
            await stop.unless_asked(env.link.drain())
        if finished and stop.asked.is_set():
            await _within(env.config.stop_patience_s, _delivered(env), stop.at_once)
    finally:
        logger.info("%s; %d sent", env.tally.describe(), env.link.sent)
        await env.link.close(env.spool_path(), at_once=stop.at_once.is_set())
        await _leave(env.workers)


async def _drop_unfinished(env: BaseEnv) -> None:
    """Groups that are not made by now, and those that were to be tried again, are given up and counted."""
    making = [running["worker"] for running in env.running_items.values() if "worker" in running]
    if env.eval_runner is not None and not env.eval_runner.done():
        logger.info("the evaluation that was under way is given up")
        making.append(env.eval_runner)
    await _leave(making)
    unfinished = [task for task in making if task is not env.eval_runner and _came_to_nothing(task)]
    for _ in [*unfinished, *env.retries]:
        env.tally.drop(STOPPED)
    env.retries.clear()


def _came_to_nothing(task: asyncio.Task[Any]) -> bool:
    return not task.done() or task.cancelled()


async def _delivered(env: BaseEnv) -> None:
    """Until everything that is made has been sent."""
    assert env.link is not None
    try:
        await _settled(env.workers)
        await env.link.drain()
    except EnvironmentRunError as error:
        logger.error("%s", error.message)


async def _leave(tasks: Collection[asyncio.Task[Any]]) -> None:
    for task in tasks:
        task.cancel()
    await _settled(tasks, _LEAVE_S)


async def _within(allowed_s: float, work: Coroutine[Any, Any, None], unless: asyncio.Event) -> None:
    """Waits for the work: not longer than allowed, and not once `unless` is set."""
    task = asyncio.create_task(work)
    await _first(task, unless, allowed_s)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def _first(task: asyncio.Task[None], event: asyncio.Event, allowed_s: float | None = None) -> None:
    """Until the task is done, the event set, or the time over."""
    heard = asyncio.create_task(event.wait())
    await asyncio.wait({task, heard}, timeout=allowed_s, return_when=asyncio.FIRST_COMPLETED)
    heard.cancel()


async def _settled(tasks: Collection[asyncio.Task[Any]], allowed_s: float | None = None) -> None:
    """Until all are done, one way or the other. Leaving it leaves them running."""
    if not tasks:
        return
    done, _ = await asyncio.wait(list(tasks), timeout=allowed_s)
    for task in done:
        if not task.cancelled():
            task.exception()  # seen: whoever waits for a result has it
