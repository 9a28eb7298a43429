"""uvicorn's HTTP connection, extended to detect whether a response arrived.

A response has arrived if the client sent its next request on the connection, or closed the connection in
order after every byte was acknowledged. It has not if the connection was reset (as by closing it with unread
data) or closed with unacknowledged bytes. A server that shuts down waits until its responses are acknowledged
before it closes their connections.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from typing import Any

from hermes.serving.protocol import LimitedHttpProtocol

_READ_AHEAD_BYTES = 4 << 20
_ACK_PATIENCE_S = 5.0
"""How long a shutdown waits for the client's kernel to acknowledge a response."""
_ACK_POLL_S = 0.02


class _BodyBuffer:
    """The received chunks of a body, joined once. Replaces uvicorn's bytearray."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def __bytes__(self) -> bytes:
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


class HttpConnection(LimitedHttpProtocol):
    """Available to the application as `scope["state"]["connection"]`."""

    _watchers: tuple[Callable[[bool], None], ...] = ()
    """Watch the responses that are not settled: one, or more if the client pipelines its requests."""
    _truncated = False
    _lost = False

    def watch(self, on_settled: Callable[[bool], None]) -> None:
        """Calls `on_settled` once: with True when the current response arrived, with False if it did not."""
        self._watchers = (*self._watchers, on_settled)
        if self._lost:
            self._settle(False)

    def on_message_begin(self) -> None:
        if self.cycle is not None and self.cycle.response_complete:
            self._settle(True)
        super().on_message_begin()
        self.scope["state"]["connection"] = self

    def on_body(self, body: bytes) -> None:
        # uvicorn wakes the application for every 64 KB and copies each byte three times; a group is larger.
        cycle: Any = self.cycle
        if self._refused or cycle.response_complete:
            return
        if not isinstance(cycle.body, _BodyBuffer):
            cycle.body = _BodyBuffer()
        cycle.body.parts.append(body)
        cycle.body.size += len(body)
        if cycle.body.size > _READ_AHEAD_BYTES:
            self.flow.pause_reading()
            cycle.message_event.set()

    # An orderly close is the client's, the keep-alive timeout's, or the server's at shutdown.

    def eof_received(self) -> None:
        self._truncated = _unacknowledged_bytes(self.transport) > 0
        super().eof_received()

    def timeout_keep_alive_handler(self) -> None:
        if not self.transport.is_closing():  # a timer that was due may run after its connection was lost
            self._truncated = _unacknowledged_bytes(self.transport) > 0
        super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        if not self._watchers:
            super().shutdown()
        else:
            self._shutdown_when_acknowledged(self.loop.time() + _ACK_PATIENCE_S)

    def _shutdown_when_acknowledged(self, deadline_s: float) -> None:
        if self._lost:
            return
        complete = self.cycle is not None and self.cycle.response_complete
        unacknowledged = _unacknowledged_bytes(self.transport) > 0
        if (unacknowledged or not complete) and self.loop.time() < deadline_s:
            self.loop.call_later(_ACK_POLL_S, self._shutdown_when_acknowledged, deadline_s)
            return
        self._truncated = complete and unacknowledged
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        complete = self.cycle is not None and self.cycle.response_complete
        super().connection_lost(exc)
        self._settle(complete and exc is None and not self._truncated)

    def _settle(self, arrived: bool) -> None:
        watchers, self._watchers = self._watchers, ()
        for on_settled in watchers:
            on_settled(arrived)


def _unacknowledged_bytes(transport: asyncio.Transport) -> int:
    """Bytes that were written here and are not acknowledged by the client's kernel."""
    queued = transport.get_write_buffer_size()
    try:
        buffer = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except OSError:  # not available on this platform
        return queued
    return queued + int(struct.unpack("i", buffer)[0])
