"""Pending futures: accepted requests whose results the client polls for.

The id of a future is derived from the client's own numbering, so a request that is sent twice gets the future
that it created the first time. A result is stored until it has been fetched and for a while after, because
the response that carried it may be lost. Then it expires, and polling for it is an error.
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

from hermes.engine.server.responses import disk_error_text, error_text, is_capacity
from hermes.engine.types import EngineUserError
from hermes.errors import HermesError

PROTOBUF, JSON = "application/x-protobuf", "application/json"
RETENTION_S = 300.0
"""How long a fetched result stays."""
RETENTION_BYTES = 256 << 20
"""How much the fetched results may take together; above it the oldest expire early."""

_logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Payload:
    body: bytes
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Failed:
    """Final: the client raises it and does not retry."""

    error: str
    category: Literal["user", "server"]


FutureResult: TypeAlias = Payload | Failed


@dataclass(slots=True, eq=False)
class PendingFuture:
    id: str
    kind: str
    digest: bytes = b""
    """The hash of the request's content: another request under the same id has another one."""
    result: FutureResult | None = None
    waits_for: str = ""
    """Why it has not started, for the client's log."""
    cancel: Callable[[], None] | None = None
    """Stops the work; None: it cannot be stopped."""
    done: asyncio.Event = field(default_factory=asyncio.Event)
    fetched: bool = False

    def finish(self, result: FutureResult) -> None:
        """The first result is final."""
        if self.result is None:
            self.result = result
            self.cancel = None
            self.done.set()


def json_payload(value: dict[str, Any]) -> Payload:
    return Payload(json.dumps(value).encode())


def failure(error: BaseException) -> Failed:
    """The error for the client. Only errors that are not the client's are logged as errors."""
    if isinstance(error, EngineUserError):
        return Failed(error_text(error), "user")
    if isinstance(error, HermesError):
        level = logging.INFO if is_capacity(error) else logging.ERROR
        _logger.log(level, "%s", error_text(error))
        return Failed(error_text(error), "server")
    if isinstance(error, OSError):
        _logger.error("%s", error)
        return Failed(disk_error_text(error), "server")
    _logger.error("a request failed with an unexpected exception", exc_info=error)
    return Failed(f"internal error: {type(error).__name__}: {error}", "server")


async def settle(pending: PendingFuture, work: Awaitable[Payload]) -> None:
    """Awaits the work and finishes the future with its result or its error."""
    try:
        pending.finish(await work)
    except asyncio.CancelledError:
        pending.finish(Failed("the request was cancelled", "user"))
    except Exception as error:  # noqa: BLE001 - the boundary: every error becomes the future's result
        pending.finish(failure(error))


class FutureStore:
    """All futures of one server. Belongs to the event loop."""

    def __init__(self, retention_bytes: int = RETENTION_BYTES) -> None:
        self._retention_bytes = retention_bytes
        self._futures: dict[str, PendingFuture] = {}
        self._fetched: deque[tuple[float, PendingFuture]] = deque()
        self._fetched_bytes = 0
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing = False
        self.open_polls = 0

    def __len__(self) -> int:
        """How many have no result yet."""
        return sum(pending.result is None for pending in self._futures.values())

    def get(self, request_id: str) -> PendingFuture | None:
        return self._futures.get(request_id)

    def add(self, pending: PendingFuture) -> PendingFuture:
        self._futures[pending.id] = pending
        return pending

    def run(self, pending: PendingFuture, work: Awaitable[Payload]) -> None:
        """Finishes the future with the result of the work, in the background."""
        self.spawn(settle(pending, work))

    def spawn(self, work: Awaitable[None]) -> asyncio.Task[None]:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def wait(self, pending: PendingFuture, timeout_s: float) -> FutureResult | None:
        """The result; None if there is none within the timeout."""
        if pending.result is None and not self._closing:
            self.open_polls += 1
            try:
                async with asyncio.timeout(timeout_s):
                    await pending.done.wait()
            except TimeoutError:
                return None
            finally:
                self.open_polls -= 1
        return pending.result

    def mark_fetched(self, pending: PendingFuture, now_s: float | None = None) -> None:
        """The result has been sent: from now on it may expire."""
        now_s = time.monotonic() if now_s is None else now_s
        if not pending.fetched:
            pending.fetched = True
            self._fetched.append((now_s, pending))
            self._fetched_bytes += _size(pending)
        self.expire(now_s)

    def cancel_session(self, session_id: str) -> None:
        """Cancels the session's futures that can be cancelled and drops them: the client has to resubmit."""
        for pending in self._of_session(session_id):
            if pending.cancel is not None:
                del self._futures[pending.id]
                pending.cancel()

    def release_session(self, session_id: str) -> None:
        """The session's results will not be fetched any more: what can be cancelled is, the rest expires."""
        for pending in self._of_session(session_id):
            if pending.result is not None:
                self.mark_fetched(pending)
            else:
                self.spawn(self._release(pending))

    async def _release(self, pending: PendingFuture) -> None:
        if pending.cancel is not None:
            pending.cancel()
        await pending.done.wait()
        self.mark_fetched(pending)

    def _of_session(self, session_id: str) -> list[PendingFuture]:
        return [pending for pending in self._futures.values() if pending.id.startswith(f"{session_id}:")]

    def expire(self, now_s: float) -> None:
        """Drops fetched results that are too old, or too many."""
        while self._fetched and (
            self._fetched[0][0] <= now_s - RETENTION_S or self._fetched_bytes > self._retention_bytes
        ):
            pending = self._fetched.popleft()[1]
            self._fetched_bytes -= _size(pending)
            self._futures.pop(pending.id, None)

    def close(self) -> None:
        """Ends all polls, without a result where there is none."""
        self._closing = True
        for pending in self._futures.values():
            pending.done.set()


def _size(pending: PendingFuture) -> int:
    return len(pending.result.body) if isinstance(pending.result, Payload) else 0
