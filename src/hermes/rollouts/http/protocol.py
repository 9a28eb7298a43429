"""Connections as uvicorn handles them, and the knowledge whether an answer arrived.

An answer has arrived if the client sent its next request on the connection, or closed it in order once
everything was delivered to it. It has not if the connection was reset (which is what closing with unread
data does) or closed with bytes still on their way.
"""

from __future__ import annotations

import asyncio
import fcntl
import struct
import termios
from collections.abc import Callable
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

_READ_AHEAD_BYTES = 4 << 20


class _BodyBuffer:
    """What arrived of a body, joined once. Takes the place of uvicorn's bytearray."""

    def __init__(self) -> None:
        self.parts: list[bytes] = []
        self.size = 0

    def __bytes__(self) -> bytes:
        return self.parts[0] if len(self.parts) == 1 else b"".join(self.parts)


class HttpConnection(HttpToolsProtocol):
    """Hands itself to the application as `scope["state"]["connection"]`."""

    _watcher: Callable[[bool], None] | None = None
    _cut = False
    _lost = False

    def watch(self, ended: Callable[[bool], None]) -> None:
        """Calls `ended` once: with True when the answer to the current request arrived, with False if not."""
        self._watcher = ended
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
        if cycle.response_complete:
            return
        if not isinstance(cycle.body, _BodyBuffer):
            cycle.body = _BodyBuffer()
        cycle.body.parts.append(body)
        cycle.body.size += len(body)
        if cycle.body.size > _READ_AHEAD_BYTES:
            self.flow.pause_reading()
            cycle.message_event.set()

    # The three ways to an orderly end: the client's, a long silence, and the server's own.

    def eof_received(self) -> None:
        self._cut = _undelivered_bytes(self.transport) > 0
        super().eof_received()

    def timeout_keep_alive_handler(self) -> None:
        self._cut = _undelivered_bytes(self.transport) > 0
        super().timeout_keep_alive_handler()

    def shutdown(self) -> None:
        if self.cycle is not None and self.cycle.response_complete:
            self._cut = _undelivered_bytes(self.transport) > 0
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost = True
        complete = self.cycle is not None and self.cycle.response_complete
        super().connection_lost(exc)
        self._settle(complete and exc is None and not self._cut)

    def _settle(self, arrived: bool) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            watcher(arrived)


def _undelivered_bytes(transport: asyncio.Transport) -> int:
    """Written here, and not acknowledged by the other side's kernel."""
    queued = transport.get_write_buffer_size()
    try:
        answer = fcntl.ioctl(transport.get_extra_info("socket").fileno(), termios.TIOCOUTQ, b"\0\0\0\0")
    except OSError:  # not told on this platform
        return queued
    return queued + int(struct.unpack("i", answer)[0])
