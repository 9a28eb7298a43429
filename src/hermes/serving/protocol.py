"""uvicorn's HTTP connection with limits that hold before a request reaches the application.

- A request's head has at most `MAX_HEAD_BYTES`; a longer one gets 431 and the connection is closed.
- A head that is not complete in time, or a body of which nothing arrives for a while, is cut with 408. Time
  in which the server itself does not read does not count.
- A header by which access is decided, such as Host, comes once; a request with two gets 400.
- With a `stranger_response`, the connection of another user of this machine gets it before anything is read.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Any, ClassVar

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from hermes.serving.peers import is_own

if TYPE_CHECKING:
    from starlette.responses import Response

MAX_HEAD_BYTES = 64 << 10
_LINGER_S = 1.0
_ONCE = frozenset((b"host", b"origin", b"referer", b"authorization", b"x-api-key", b"sec-fetch-site"))
"""Where one of two counts, a proxy and this server may not choose the same one."""


class LimitedHttpProtocol(HttpToolsProtocol):
    stranger_response: ClassVar[Response | None] = None
    """The answer to other users than this process's and root; None: every user may connect."""
    head_timeout_s: ClassVar[float] = 30.0
    """From the connection, or the first byte of a further request, to the end of the head."""
    body_timeout_s: ClassVar[float] = 60.0
    """Between two parts of a body."""

    _head_bytes = 0
    _in_head = True
    _deadline: asyncio.TimerHandle | None = None
    _refused = False

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        ends = transport.get_extra_info("peername"), transport.get_extra_info("sockname")
        if self.stranger_response is not None and not is_own(*ends):
            response = self.stranger_response
            headers = b"".join(b"%s: %s\r\n" % header for header in response.raw_headers)
            self._send_and_close(b"403 Forbidden", headers, bytes(response.body))
            return
        self._expect(self.head_timeout_s)

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
            if self._deadline is None:
                self._expect(self.head_timeout_s)
        elif self._deadline is not None:
            self._expect(self.body_timeout_s)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._refuse_large_head()

    def on_message_begin(self) -> None:
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        if sum(len(name) + len(value) for name, value in self.headers) + len(self.url) > MAX_HEAD_BYTES:
            self._refuse_large_head()
            return
        names = [name for name, _ in self.headers if name in _ONCE]
        if len(set(names)) != len(names):
            self._refuse(b"400 Bad Request", b"a header that must come once came twice")
            return
        self._expect(self.body_timeout_s)
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        if not self._refused:
            super().on_body(body)

    def on_message_complete(self) -> None:
        self._expect(None)
        self._in_head, self._head_bytes = True, 0
        if not self._refused:
            super().on_message_complete()

    def handle_websocket_upgrade(self) -> None:
        if self._refused:
            return
        self._expect(None)  # nothing is awaited of a session that is idle
        super().handle_websocket_upgrade()

    def connection_lost(self, exc: Exception | None) -> None:
        self._expect(None)
        super().connection_lost(exc)

    def _expect(self, timeout_s: float | None) -> None:
        """More of the request must arrive within this time; None: nothing is awaited."""
        if self._deadline is not None:
            self._deadline.cancel()
        self._deadline = None
        if timeout_s is not None:
            self._deadline = self.loop.call_later(timeout_s, self._cut)

    def _cut(self) -> None:
        self._deadline = None
        if self.flow is not None and self.flow.read_paused:
            self._expect(self.body_timeout_s)  # the server has not read what has arrived
            return
        self._refuse(b"408 Request Timeout", b"the request did not arrive completely")

    def _refuse_large_head(self) -> None:
        self._refuse(b"431 Request Header Fields Too Large", f"at most {MAX_HEAD_BYTES} bytes".encode())

    def _refuse(self, status: bytes, detail: bytes) -> None:
        body = json.dumps({"detail": detail.decode()}).encode()
        headers = b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body)
        self._send_and_close(status, headers, body)

    def _send_and_close(self, status: bytes, headers: bytes, body: bytes) -> None:
        self._refused = True
        self._expect(None)
        if self.transport.is_closing():
            return
        begun = self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
        if not begun:
            head = b"HTTP/1.1 " + status + b"\r\nconnection: close\r\n" + headers
            self.transport.write(head + b"\r\n" + body)
        # Closed at once, with data unread, the connection would be reset before the client reads this.
        self.transport.pause_reading()
        self.loop.call_later(_LINGER_S, self.transport.close)
