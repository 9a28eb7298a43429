"""A transport in which every request under way has a connection of its own, the last used first.

The pool of httpx2 looks at each of its connections, and asks the system about each idle one, whenever a
request begins or ends: with a hundred in flight that is a third of what a request costs. Here each line is a
pool of one, so a request costs the same however many there are, and a connection that the server closed is
still opened again. How many there may be is for the caller to limit. Proxies are not known here.

Imports httpx2: to be imported where the client is made.
"""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import AsyncIterator

import httpx2


class ConnectionPool(httpx2.AsyncBaseTransport):
    def __init__(self, tls: ssl.SSLContext, idle_s: float = 5.0) -> None:
        """`idle_s` is how long an unused connection is kept open, at least."""
        self._tls = tls
        self._idle_s = idle_s
        self._lines: set[httpx2.AsyncHTTPTransport] = set()
        self._idle: deque[tuple[httpx2.AsyncHTTPTransport, float]] = deque()
        """With the time since when; the longest idle first."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        line = self._idle.pop()[0] if self._idle else self._new()
        try:
            response = await line.handle_async_request(request)
        except BaseException:
            self._idle.append((line, time.monotonic()))  # its broken connection it has closed itself
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _Answer(response.stream, line, self)
        return response

    async def aclose(self) -> None:
        lines = list(self._lines)
        self._lines.clear()
        self._idle.clear()
        for line in lines:
            await line.aclose()

    def _new(self) -> httpx2.AsyncHTTPTransport:
        one = httpx2.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=self._idle_s)
        line = httpx2.AsyncHTTPTransport(verify=self._tls, limits=one)
        self._lines.add(line)
        return line

    async def done(self, line: httpx2.AsyncHTTPTransport) -> None:
        """`line` is free again; those that nobody has needed for a while are closed."""
        now_s = time.monotonic()
        self._idle.append((line, now_s))
        while self._idle and self._idle[0][1] < now_s - self._idle_s:
            stale, _ = self._idle.popleft()
            self._lines.discard(stale)
            await stale.aclose()


class _Answer(httpx2.AsyncByteStream):
    """A body that gives its line back when it is closed."""

    def __init__(
        self, body: httpx2.AsyncByteStream, line: httpx2.AsyncHTTPTransport, lines: ConnectionPool
    ) -> None:
        self._body = body
        self._line: httpx2.AsyncHTTPTransport | None = line
        self._lines = lines

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._body:
            yield part

    async def aclose(self) -> None:
        line, self._line = self._line, None
        try:
            await self._body.aclose()
        finally:
            if line is not None:
                await self._lines.done(line)
