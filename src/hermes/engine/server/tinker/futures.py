"""Calls: work that was accepted and whose result is asked for later, by polling.

A call's id is made from what the client numbered, so that a submission that is sent again finds the call it
made the first time. A result is kept until it has been fetched and for a while after, because the answer that
carried it may have been lost; then the call is forgotten, and asking for it says so.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections import deque
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

from hermes.engine.server.responses import is_capacity, reason
from hermes.engine.types import EngineUserError
from hermes.errors import HermesError

PROTOBUF, JSON = "application/x-protobuf", "application/json"
KEPT_S = 300.0
"""How long a fetched result stays."""
KEPT_BYTES = 256 << 20
"""How much of them stays at most."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Payload:
    body: bytes
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Failed:
    """Final: the client raises it and does not ask again."""

    error: str
    category: Literal["user", "server"]


Outcome: TypeAlias = Payload | Failed


@dataclass(slots=True, eq=False)
class PendingFuture:
    id: str
    kind: str
    digest: bytes = b""
    """Of what was asked for; two different requests under one id are told apart by it."""
    outcome: Outcome | None = None
    waits_for: str = ""
    """Why it has not begun, for the client's log."""
    cancel: Callable[[], None] | None = None
    done: asyncio.Event = field(default_factory=asyncio.Event)
    fetched: bool = False

    def finish(self, outcome: Outcome) -> None:
        if self.outcome is None:
            self.outcome = outcome
            self.cancel = None
            self.done.set()


def json_payload(value: dict[str, Any]) -> Payload:
    return Payload(json.dumps(value).encode())


def failure_of(error: BaseException) -> Failed:
    """What the client is told. Anything but a HermesError is a fault of ours, and is logged as one."""
    if isinstance(error, EngineUserError):
        return Failed(reason(error), "user")
    if isinstance(error, HermesError):
        level = logging.INFO if is_capacity(error) else logging.ERROR
        _logger.log(level, "%s", reason(error))
        return Failed(reason(error), "server")
    if isinstance(error, OSError):
        _logger.error("%s", error)
        return Failed(f"the disk refused: {error.strerror or error}", "server")
    _logger.error("a call failed in a way that was not foreseen", exc_info=error)
    return Failed(f"internal error: {type(error).__name__}: {error}", "server")


async def settle(call: PendingFuture, work: Awaitable[Payload]) -> None:
    """Waits for the work and finishes the call with what came of it."""
    try:
        call.finish(await work)
    except asyncio.CancelledError:
        call.finish(Failed("it was cancelled", "user"))
    except Exception as error:  # noqa: BLE001 - the boundary: every failure is the call's result, none is lost
        call.finish(failure_of(error))


class FutureStore:
    """All calls of one server. Belongs to the event loop."""

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._kept_bytes = kept_bytes
        self._calls: dict[str, PendingFuture] = {}
        self._fetched: deque[tuple[float, PendingFuture]] = deque()
        self._fetched_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self.polls_held = 0

    def __len__(self) -> int:
        return sum(call.outcome is None for call in self._calls.values())

    def get(self, request_id: str) -> PendingFuture | None:
        return self._calls.get(request_id)

    def open(self, call: PendingFuture) -> PendingFuture:
        self._calls[call.id] = call
        return call

    def run(self, call: PendingFuture, work: Awaitable[Payload]) -> None:
        """Finishes the call with what the work gives, in the background."""
        self.spawn(settle(call, work))

    def spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def wait(self, call: PendingFuture, timeout_s: float) -> Outcome | None:
        """Its outcome, or None if there is none in time."""
        if call.outcome is None and not self._closing:
            self.polls_held += 1
            try:
                async with asyncio.timeout(timeout_s):
                    await call.done.wait()
            except TimeoutError:
                return None
            finally:
                self.polls_held -= 1
        return call.outcome

    def fetched(self, call: PendingFuture, now_s: float | None = None) -> None:
        """The result has been sent; from now on it may be forgotten."""
        if not call.fetched:
            call.fetched = True
            self._fetched.append((time.monotonic() if now_s is None else now_s, call))
            self._fetched_bytes += _size(call)
        self.forget(time.monotonic() if now_s is None else now_s)

    def abandon(self, owner: str) -> None:
        """Nobody will ask for the results of this session any more; what can be cancelled is."""
        for call in [call for call in self._calls.values() if call.id.startswith(f"{owner}:")]:
            if call.outcome is not None:
                self.fetched(call)
            else:
                self.spawn(self._let_go(call))

    def give_up(self, owner: str) -> None:
        """Stops what can be stopped and forgets it: who asks for it after all is told to send it again."""
        for call in [call for call in self._calls.values() if call.id.startswith(f"{owner}:")]:
            if call.cancel is not None:
                del self._calls[call.id]
                call.cancel()

    async def _let_go(self, call: PendingFuture) -> None:
        if call.cancel is not None:
            call.cancel()
        await call.done.wait()
        self.fetched(call)

    def forget(self, now_s: float) -> None:
        while self._fetched and (
            self._fetched[0][0] <= now_s - KEPT_S or self._fetched_bytes > self._kept_bytes
        ):
            call = self._fetched.popleft()[1]
            self._fetched_bytes -= _size(call)
            self._calls.pop(call.id, None)

    def close(self) -> None:
        """Lets everyone who waits go."""
        self._closing = True
        for call in self._calls.values():
            call.done.set()


def _size(call: PendingFuture) -> int:
    return len(call.outcome.body) if isinstance(call.outcome, Payload) else 0
