"""Pending results, for code that awaits them and for code that cannot.

`SyncOrAwaitable` is what a method returns to code on the event loop: it must be awaited. Used as if it were
the result, it raises an error with the fix, since waiting there would block every other rollout.
`in_own_thread` runs code that cannot await; in that thread `block_on` waits for a coroutine on the event loop
and returns its result. `LoopBoundServer` lets coroutines of another loop use model servers whose connections
belong to one loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Generator, Iterator
from concurrent.futures import Future
from contextlib import suppress
from contextvars import copy_context
from typing import Any, TypeVar

from hermes.errors import UsageError

T = TypeVar("T")


class SyncOrAwaitable:
    """A coroutine that can be awaited once, and nothing else."""

    def __init__(self, work: Coroutine[Any, Any, Any]) -> None:
        self._work = work

    def __await__(self) -> Generator[Any, Any, Any]:
        return self._work.__await__()

    def __getitem__(self, key: object) -> Any:
        raise self._misuse_error()

    def __contains__(self, key: object) -> bool:
        raise self._misuse_error()

    def __iter__(self) -> Iterator[Any]:
        raise self._misuse_error()

    def __bool__(self) -> bool:
        raise self._misuse_error()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._misuse_error()

    def _misuse_error(self) -> UsageError:
        self._work.close()
        method = getattr(self._work, "__name__", "").lstrip("_")
        return UsageError(
            f"the result of ToolContext.{method} was used without being awaited.",
            "Write 'await ctx.…', or make compute_reward a plain function ('def', not 'async def').",
        )


async def in_own_thread(function: Callable[[], T]) -> T:
    """Runs the function in a new thread, and returns or raises what it does.

    The thread is not one of the loop's pool: the work that the function waits for may need one of those, and
    if all of them waited like this there would be a deadlock. It does not keep the process alive.
    """
    loop = asyncio.get_running_loop()
    ended, context = asyncio.Event(), copy_context()
    outcome: Future[T] = Future()

    def work() -> None:
        try:
            outcome.set_result(context.run(function))
        except BaseException as error:  # noqa: BLE001  raised by outcome.result()
            outcome.set_exception(error)
        with suppress(RuntimeError):  # the loop is closed: nothing waits
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=work, name="reward", daemon=True).start()
    await ended.wait()
    return outcome.result()


def block_on(work: Coroutine[Any, Any, T], loop: asyncio.AbstractEventLoop) -> T:
    """Runs the coroutine on `loop`, which must belong to another thread, and waits for its result."""
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        running = None
    if running is loop:
        work.close()
        raise UsageError(
            "a coroutine of this event loop cannot be waited for on the loop itself.",
            "Call it from a plain function in another thread, or await the other form.",
        )
    return asyncio.run_coroutine_threadsafe(work, loop).result()


class LoopBoundServer:
    """An environment's servers, callable from the loop of a reward function's own thread as well."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._loop: asyncio.AbstractEventLoop | None = None

    def bind_to_running_loop(self) -> None:
        """Requests are made on the running loop from now on."""
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._server, name)

    async def chat_completion(self, **kwargs: Any) -> Any:
        return await self._on_bound_loop(self._server.chat_completion(**kwargs))

    async def completion(self, **kwargs: Any) -> Any:
        return await self._on_bound_loop(self._server.completion(**kwargs))

    async def _on_bound_loop(self, work: Coroutine[Any, Any, T]) -> T:
        if self._loop is None or self._loop is asyncio.get_running_loop():
            return await work
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(work, self._loop))
