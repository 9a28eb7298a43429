"""Lanes: the training calls of one model, begun strictly by their number, whatever order they arrive in.

The SDK numbers the calls of a model, posts the chunks of one batch at once with the first chunk last, and
posts the next step while this one runs. So a call begins when every lower number has begun. The engine runs
what it is given in that order, which is why most calls need not wait for the one before to end; one that
reads or writes files (`alone`) begins when all before it have ended and ends before the next begins.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import NamedTuple, TypeAlias

from hermes.engine.server.responses import RequestError
from hermes.engine.server.tinker.futures import Failed, FutureStore, Payload, PendingFuture, settle

Start: TypeAlias = Callable[[], Awaitable[Payload]]
"""Hands the work to the engine when called, and gives what is to be waited for."""


class _QueuedCall(NamedTuple):
    call: PendingFuture
    start: Start
    alone: bool


class CallSequencer:
    """Belongs to the event loop."""

    def __init__(self, calls: FutureStore, name: str) -> None:
        self._calls = calls
        self._name = name
        self._next = 0
        """The number of the call that begins next; 0 is the model's own creation."""
        self._waiting: dict[int, _QueuedCall] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._alone = False
        self._closed = ""

    def call_id(self, number: int) -> str:
        return f"{self._name}:{number}"

    def submit(
        self, number: int, kind: str, digest: bytes, start: Start, *, alone: bool = False
    ) -> PendingFuture:
        """The call under that number, made now or already there.

        Refused: the number was used for something else. A client that sends a submission again sends the same
        content, so other content means that a second client trains this model.
        """
        if known := self._calls.get(self.call_id(number)):
            if (known.kind, known.digest) != (kind, digest):
                raise self._taken(number)
            return known
        if self._closed:
            raise RequestError(400, self._closed)
        if number < self._next:
            raise self._taken(number)
        call = self._calls.open(PendingFuture(self.call_id(number), kind, digest))
        self._waiting[number] = _QueuedCall(call, start, alone)
        self._advance()
        if number > self._next and self._next not in self._waiting:
            call.waits_for = f"call {self._next} of {self._name} has not arrived"
        return call

    def close(self, why: str) -> None:
        """Fails what has not begun; nothing begins any more."""
        self._closed = why
        for job in self._waiting.values():
            job.call.finish(Failed(why, "user"))
        self._waiting.clear()

    async def ended(self) -> None:
        """Returns when nothing runs."""
        while self._running:
            await asyncio.wait(self._running)

    def _taken(self, number: int) -> RequestError:
        return RequestError(
            422,
            f"call {number} of {self._name} was made before, with other content: two clients seem to train"
            " one model (make a training client of its own for each, from a checkpoint)",
        )

    def _advance(self) -> None:
        while (job := self._waiting.get(self._next)) and not self._alone:
            if job.alone and self._running:
                return
            del self._waiting[self._next]
            self._next += 1
            self._alone = job.alone
            job.call.waits_for = ""
            task = self._calls.spawn(settle(job.call, self._begun(job)))
            self._running.add(task)
            task.add_done_callback(self._end)

    def _begun(self, job: _QueuedCall) -> Awaitable[Payload]:
        try:
            return job.start()
        except Exception as error:  # noqa: BLE001 - handed on: it becomes the call's result
            return _raising(error)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._alone = False
        self._advance()


async def _raising(error: Exception) -> Payload:
    raise error
