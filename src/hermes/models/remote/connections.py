"""A transport in which every request in flight has its own connection, the most recently used first.

httpx2's own pool iterates over its connections, with a system call for each idle one, whenever a request
begins or ends: with a hundred in flight that is a third of a request's CPU time. Here each transport is a
pool of one, so the cost does not grow with their number, and a connection that the server closed is still
reopened. The caller limits how many there are. Proxies are not supported.

This module imports httpx2; import it only where the client is created.
"""

from __future__ import annotations

import ssl
import time
from collections import deque
from collections.abc import AsyncIterator

import httpx2


class ConnectionPool(httpx2.AsyncBaseTransport):
    def __init__(self, tls: ssl.SSLContext, idle_s: float = 5.0) -> None:
        """`idle_s` is how long an unused connection stays open, at least."""
        self._tls = tls
        self._idle_s = idle_s
        self._transports: set[httpx2.AsyncHTTPTransport] = set()
        self._idle: deque[tuple[httpx2.AsyncHTTPTransport, float]] = deque()
        """Each with the time since when it is idle; the longest idle first."""

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        transport = self._idle.pop()[0] if self._idle else self._open()
        try:
            response = await transport.handle_async_request(request)
        except BaseException:
            self._idle.append((transport, time.monotonic()))  # it has closed its broken connection itself
            raise
        assert isinstance(response.stream, httpx2.AsyncByteStream)
        response.stream = _PooledBody(response.stream, transport, self)
        return response

    async def aclose(self) -> None:
        transports = list(self._transports)
        self._transports.clear()
        self._idle.clear()
        for transport in transports:
            await transport.aclose()

    def _open(self) -> httpx2.AsyncHTTPTransport:
        limits = httpx2.Limits(max_connections=1, max_keepalive_connections=1, keepalive_expiry=self._idle_s)
        transport = httpx2.AsyncHTTPTransport(verify=self._tls, limits=limits)
        self._transports.add(transport)
        return transport

    async def release(self, transport: httpx2.AsyncHTTPTransport) -> None:
        """Returns `transport` to the pool, and closes those that have been idle for long."""
        now_s = time.monotonic()
        self._idle.append((transport, now_s))
        while self._idle and self._idle[0][1] < now_s - self._idle_s:
            stale, _ = self._idle.popleft()
            self._transports.discard(stale)
            await stale.aclose()


class _PooledBody(httpx2.AsyncByteStream):
    """A response body that releases its transport when it is closed."""

    def __init__(
        self, body: httpx2.AsyncByteStream, transport: httpx2.AsyncHTTPTransport, transports: ConnectionPool
    ) -> None:
        self._body = body
        self._transport: httpx2.AsyncHTTPTransport | None = transport
        self._transports = transports

    async def __aiter__(self) -> AsyncIterator[bytes]:
        async for part in self._body:
            yield part

    async def aclose(self) -> None:
        transport, self._transport = self._transport, None
        try:
            await self._body.aclose()
        finally:
            if transport is not None:
                await self._transports.release(transport)
