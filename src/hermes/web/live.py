"""Server-sent events: streams that end when the server does.

A stream is a function that returns the next event or None. It is called in a thread, at a fixed pace, until
the browser leaves, the server stops, or an event says that it is the last one (`"ended": true`).
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable
from typing import Any

import anyio
import anyio.to_thread
from starlette.responses import StreamingResponse

from hermes.errors import HermesError
from hermes.web.responses import PageError

_BEAT_S = 15.0
_STOP_CHECK_S = 0.25

_THREADS = 4
"""Streams share these, so that no number of open pages takes the threads of those who ask for a page."""
MAX_STREAMS = 200

NextEvent = Callable[[], dict[str, Any] | None]


class LiveStreams:
    """The open streams of one server."""

    def __init__(self) -> None:
        self.stopping = threading.Event()
        """Set when the server ends."""
        self._count = 0
        self._limiter = anyio.CapacityLimiter(_THREADS)

    def open(self, next_event: NextEvent, every_s: float) -> StreamingResponse:
        """A response that sends what `next_event` returns, as JSON, and a comment while it returns nothing.

        PageError: so many streams are open that another one would slow all of them down.
        """
        if self._count >= MAX_STREAMS:
            raise PageError(503, f"{self._count} live pages are open", "Close some; the page itself works.")
        return StreamingResponse(
            self._events(next_event, every_s),
            media_type="text/event-stream",
            headers={"cache-control": "no-store", "x-accel-buffering": "no"},
        )

    async def _events(self, next_event: NextEvent, every_s: float) -> AsyncIterator[bytes]:
        self._count += 1
        try:
            silent_s = 0.0
            yield b"retry: 2000\n\n"
            while not self.stopping.is_set():
                event = await self._next(next_event)
                if event is not None:
                    yield b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
                    silent_s = 0.0
                    if event.get("ended"):
                        return
                elif silent_s >= _BEAT_S:
                    yield b": still here\n\n"
                    silent_s = 0.0
                waited_s = 0.0
                while waited_s < every_s and not self.stopping.is_set():
                    await asyncio.sleep(min(_STOP_CHECK_S, every_s - waited_s))
                    waited_s += _STOP_CHECK_S
                silent_s += every_s
        finally:
            self._count -= 1

    async def _next(self, next_event: NextEvent) -> dict[str, Any] | None:
        try:
            return await anyio.to_thread.run_sync(next_event, limiter=self._limiter)
        except HermesError as error:
            return {"error": error.message}
