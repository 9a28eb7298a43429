"""The numbered calls of a model: how they are read, and the order in which they run.

The SDK numbers the calls of a model, posts the chunks of one batch concurrently with the first chunk last,
and posts the next step while this one runs. So a call starts when every lower number has started, whatever
order they arrive in. The engine runs its work in that order, which is why most calls need not wait for the
previous one to end. One that reads or writes files is `exclusive`: it starts when all calls before it have
ended, and ends before the next starts.

Only the model and the number are validated before a call is queued. The rest is validated when the call
starts, so that an error in it becomes the call's result. A call that was rejected at once would leave a gap
in the numbers, and the calls after it would wait for it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import NamedTuple, TypeAlias, TypeVar

from pydantic import BaseModel
from starlette.responses import Response

from hermes.engine.server.responses import RequestError, as_json, parse_json, validate_json
from hermes.engine.server.tinker import schema
from hermes.engine.server.tinker.futures import Failed, FutureStore, Payload, PendingFuture, settle

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)
Start: TypeAlias = Callable[[], Awaitable[Payload]]
"""Submits the work to the engine when it is called; the awaitable has the result."""


class NumberedCall(NamedTuple):
    model_id: str
    number: int
    digest: bytes
    """The hash of the content, the same each time it is submitted."""
    content: bytes

    def parse(self, schema: type[Body]) -> Body:
        """EngineUserError: the content does not match the schema."""
        return parse_json(self.content, schema)


def read_call(content: bytes) -> NumberedCall:
    """RequestError: it has no model and number."""
    reference = validate_json(content, schema.NumberedBody)
    fields = dict(reference.model_extra or {})
    fields.pop("sampling_session_seq_id", None)  # the SDK increments it when it resubmits
    digest = digest_of(json.dumps(fields, sort_keys=True).encode())
    return NumberedCall(reference.model_id, reference.seq_id, digest, content)


def digest_of(content: bytes) -> bytes:
    return hashlib.blake2b(content).digest()


async def encode_result(future: Future[T], encode: Callable[[T], Payload]) -> Payload:
    return encode(await asyncio.wrap_future(future))


class _QueuedCall(NamedTuple):
    pending: PendingFuture
    start: Start
    exclusive: bool


class CallSequencer:
    """Belongs to the event loop."""

    def __init__(self, futures: FutureStore, model_id: str) -> None:
        self._futures = futures
        self._model_id = model_id
        self._next = 0
        """The number of the call that starts next; 0 creates the model."""
        self._queued: dict[int, _QueuedCall] = {}
        self._running: set[asyncio.Task[None]] = set()
        self._exclusive = False
        """The running call is exclusive."""
        self._closed = ""

    def request_id(self, number: int) -> str:
        return f"{self._model_id}:{number}"

    def submit(
        self, number: int, kind: str, digest: bytes, start: Start, *, exclusive: bool = False
    ) -> PendingFuture:
        """The future of the call with that number, which is created unless it exists.

        RequestError: the number was used for another call. A client that resubmits sends the same content, so
        other content means that a second client trains this model.
        """
        if existing := self._futures.get(self.request_id(number)):
            if (existing.kind, existing.digest) != (kind, digest):
                raise self._conflict(number)
            return existing
        if self._closed:
            raise RequestError(400, self._closed)
        if number < self._next:
            raise self._conflict(number)
        pending = self._futures.add(PendingFuture(self.request_id(number), kind, digest))
        self._queued[number] = _QueuedCall(pending, start, exclusive)
        self._advance()
        if number > self._next and self._next not in self._queued:
            pending.waits_for = f"call {self._next} of {self._model_id} has not arrived"
        return pending

    def accept(
        self, number: int, kind: str, digest: bytes, start: Start, *, exclusive: bool = False
    ) -> Response:
        """Submits a call; the response has the id to poll."""
        pending = self.submit(number, kind, digest, start, exclusive=exclusive)
        return as_json({"request_id": pending.id, "model_id": self._model_id})

    def close(self, reason: str) -> None:
        """Fails all calls that have not started, and rejects new ones."""
        self._closed = reason
        for call in self._queued.values():
            call.pending.finish(Failed(reason, "user"))
        self._queued.clear()

    async def wait_idle(self) -> None:
        """Returns when no call runs."""
        while self._running:
            await asyncio.wait(self._running)

    def _conflict(self, number: int) -> RequestError:
        return RequestError(
            422,
            f"call {number} of {self._model_id} exists with other content: two clients seem to train one"
            " model (create a separate training client for each, from a checkpoint)",
        )

    def _advance(self) -> None:
        while (call := self._queued.get(self._next)) and not self._exclusive:
            if call.exclusive and self._running:
                return
            del self._queued[self._next]
            self._next += 1
            self._exclusive = call.exclusive
            call.pending.waits_for = ""
            task = self._futures.spawn(settle(call.pending, _start(call)))
            self._running.add(task)
            task.add_done_callback(self._on_end)

    def _on_end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        self._exclusive = False
        self._advance()


def _start(call: _QueuedCall) -> Awaitable[Payload]:
    try:
        return call.start()
    except Exception as error:  # noqa: BLE001 - passed on: it becomes the call's result
        return _raise(error)


async def _raise(error: Exception) -> Payload:
    raise error
