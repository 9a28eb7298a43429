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

from starlette.concurrency import run_in_threadpool
from starlette.responses import StreamingResponse

from hermes.errors import HermesError

_BEAT_S = 15.0
_STOP_CHECK_S = 0.25

NextEvent = Callable[[], dict[str, Any] | None]


def event_stream(stopping: threading.Event, next_event: NextEvent, every_s: float) -> StreamingResponse:
    """A response that sends what `next_event` returns, as JSON, and a comment while it returns nothing."""
    return StreamingResponse(
        _events(stopping, next_event, every_s),
        media_type="text/event-stream",
        headers={"cache-control": "no-store", "x-accel-buffering": "no"},
    )


async def _events(stopping: threading.Event, next_event: NextEvent, every_s: float) -> AsyncIterator[bytes]:
    silent_s = 0.0
    yield b"retry: 2000\n\n"
    while not stopping.is_set():
        try:
            event = await run_in_threadpool(next_event)
        except HermesError as error:
            event = {"error": error.message}
        if event is not None:
            yield b"data: " + json.dumps(event, separators=(",", ":")).encode() + b"\n\n"
            silent_s = 0.0
            if event.get("ended"):
                return
        elif silent_s >= _BEAT_S:
            yield b": still here\n\n"
            silent_s = 0.0
        waited_s = 0.0
        while waited_s < every_s and not stopping.is_set():
            await asyncio.sleep(min(_STOP_CHECK_S, every_s - waited_s))
            waited_s += _STOP_CHECK_S
        silent_s += every_s
