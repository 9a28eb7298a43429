"""An HTTP client for answers that arrive in many small pieces: httptools on bare connections.

A general client spends most of a relayed stream's CPU. This one sends a request, gives the response's body as
it arrives, and keeps connections for later requests. HTTPS goes through the proxy that the environment names.
Not promised: redirects, a proxy that asks for a password.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections import deque
from collections.abc import AsyncGenerator
from contextlib import suppress
from typing import cast
from urllib.parse import SplitResult, urlsplit

import httptools

from hermes.errors import ProviderError
from hermes.safety.access import is_loopback

RawHeaders = list[tuple[bytes, bytes]]
_CONNECT_S = 10.0
_IDLE_S = 15.0
_MOST_UNREAD_BYTES = 1 << 18


class _Connection(asyncio.Protocol):
    """One connection, with one request at a time."""

    def __init__(self) -> None:
        self.idle_since_s = 0.0
        self.closed = False
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[None] | None = None
        self.begin()

    def begin(self, method: str = "") -> None:
        self._is_head = method == "HEAD"
        """The answer ends with its head, whatever length it names."""
        self._parser = httptools.HttpResponseParser(self)
        self._parts: deque[bytes] = deque()
        self._unread_bytes = 0
        self._paused = False
        self._has_end = False
        """The head says where the body ends; else the connection's end is its end."""
        self._keeps_alive = False
        self._error: Exception | None = None
        self.status = 0
        self.headers: RawHeaders = []
        self.complete = False

    # what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._error = ProviderError(f"the provider's answer is not HTTP: {error}", status=502)
            self.abort()
        self._wake()

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if self.status and not self._has_end:
            self.complete = True
        self._error = self._error or error
        self._wake()

    # what the parser calls

    def on_message_begin(self) -> None:
        self.headers, self._has_end = [], False

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name, value))
        self._has_end = self._has_end or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status >= 200:  # an interim response has nothing of the answer
            self.status = status
            self._has_end = self._has_end or status in (204, 304)
            self.complete = self.complete or self._is_head

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._unread_bytes += len(body)
        if self._unread_bytes > _MOST_UNREAD_BYTES and not self._paused and self._transport:
            self._paused = True
            self._transport.pause_reading()

    def on_message_complete(self) -> None:
        self.complete = self.complete or bool(self.status)
        self._keeps_alive = self._parser.should_keep_alive()  # afterwards the parser has forgotten the head

    # what the client calls

    def write(self, *parts: bytes) -> None:
        assert self._transport is not None
        self._transport.writelines(parts)

    async def wait_for_head(self, timeout_s: float) -> None:
        while not self.status:
            await self._wait(timeout_s)

    async def body(self, timeout_s: float) -> AsyncGenerator[bytes, None]:
        while True:
            if self._parts:
                part = self._parts.popleft() if len(self._parts) == 1 else b"".join(self._parts)
                self._parts.clear()
                self._unread_bytes = 0
                if self._paused and self._transport is not None and not self.closed:
                    self._paused = False
                    self._transport.resume_reading()
                yield part
            elif self.complete:
                return
            else:
                await self._wait(timeout_s)

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    async def encrypt(self, tls: ssl.SSLContext, host: str | None) -> None:
        """Begins TLS behind a proxy's answer."""
        assert self._transport is not None
        loop = asyncio.get_running_loop()
        self._transport = await loop.start_tls(self._transport, self, tls, server_hostname=host)
        self.begin()

    @property
    def reusable(self) -> bool:
        return self.complete and not self.closed and self._has_end and self._keeps_alive

    async def _wait(self, timeout_s: float) -> None:
        """Until something arrives. ProviderError: nothing will, or nothing did in this time."""
        if self.closed:
            reason = self._error or "it closed the connection"
            raise (
                self._error
                if isinstance(self._error, ProviderError)
                else ProviderError(str(reason), status=502)
            )
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(timeout_s):
                await self._waiter
        except TimeoutError:
            raise ProviderError("it did not answer in time", status=504) from None
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class HttpResponse:
    """A response whose body is read once; close it, read or not."""

    def __init__(self, client: HttpClient, origin: str, connection: _Connection, timeout_s: float) -> None:
        self._client = client
        self._origin = origin
        self._connection: _Connection | None = connection
        self._timeout_s = timeout_s
        self.status = connection.status
        self.headers = list(connection.headers)

    def header(self, name: bytes) -> str | None:
        return next((value.decode("latin-1") for key, value in self.headers if key.lower() == name), None)

    async def body(self) -> AsyncGenerator[bytes, None]:
        """ProviderError: it broke off."""
        assert self._connection is not None
        async for part in self._connection.body(self._timeout_s):
            yield part

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is None:
            return
        if connection.reusable:
            self._client.release(self._origin, connection)
        else:
            connection.abort()


class HttpClient:
    """The connections of one event loop."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: the longest silence of a server."""
        self._timeout_s = timeout_s
        self._idle: dict[str, deque[_Connection]] = {}
        self._tls: ssl.SSLContext | None = None

    async def send(self, method: str, url: str, headers: RawHeaders, content: bytes) -> HttpResponse:
        """The response with its body unread. ProviderError: there is none."""
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        lines = [f"{method} {target} HTTP/1.1\r\nhost: {parts.netloc}\r\n".encode("latin-1")]
        lines += [b"%s: %s\r\n" % header for header in headers]
        if content or method != "GET":
            lines.append(b"content-length: %d\r\n" % len(content))
        connection = None
        try:
            connection = self._reuse(origin) or await self._connect(
                parts.scheme, parts.hostname or "", parts.port
            )
            connection.begin(method)
            connection.write(*lines, b"\r\n", content)
            await connection.wait_for_head(self._timeout_s)
        except BaseException as error:
            if connection is not None:
                connection.abort()
            if isinstance(error, ProviderError):
                raise ProviderError(f"{parts.hostname}: {error.message}", status=error.status) from error
            if isinstance(error, OSError):  # TimeoutError and SSL errors are some, too
                raise ProviderError(f"{parts.hostname} cannot be reached: {error}", status=502) from error
            raise
        return HttpResponse(self, origin, connection, self._timeout_s)

    def release(self, origin: str, connection: _Connection) -> None:
        idle = self._idle.setdefault(origin, deque())
        connection.idle_since_s = time.monotonic()
        idle.append(connection)
        while idle and idle[0].idle_since_s < connection.idle_since_s - _IDLE_S:
            idle.popleft().abort()

    def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.abort()
        self._idle.clear()

    def _reuse(self, origin: str) -> _Connection | None:
        """The connection that was used last, if it is not so old that the server may be closing it."""
        idle = self._idle.get(origin)
        while idle:
            connection = idle.pop()
            if connection.closed or connection.idle_since_s < time.monotonic() - _IDLE_S:
                connection.abort()
                continue
            return connection
        return None

    async def _connect(self, scheme: str, host: str, port: int | None) -> _Connection:
        tls = None
        if scheme == "https":
            tls = self._tls = self._tls or _trusted()
        port, loop = port or (443 if tls else 80), asyncio.get_running_loop()
        proxy = _proxy(scheme, host)
        async with asyncio.timeout(_CONNECT_S):
            if proxy is None or tls is None:
                _, connection = await loop.create_connection(_Connection, host, port, ssl=tls)
                return connection
            _, connection = await loop.create_connection(_Connection, proxy.hostname or "", proxy.port or 80)
            connection.write(f"CONNECT {host}:{port} HTTP/1.1\r\nhost: {host}:{port}\r\n\r\n".encode())
            await connection.wait_for_head(_CONNECT_S)
            if connection.status != 200:
                raise ProviderError(f"the proxy refuses with {connection.status}", status=502)
            await connection.encrypt(tls, host)
        return connection


def _proxy(scheme: str, host: str) -> SplitResult | None:
    """The proxy that the environment names for this host; none for this machine's own servers."""
    from urllib.request import getproxies, proxy_bypass

    address = getproxies().get(scheme)
    if address is None or is_loopback(host) or proxy_bypass(host):
        return None
    return urlsplit(address)


def _trusted() -> ssl.SSLContext:
    """The authorities that other clients of Hermes trust."""
    import httpx2

    context = httpx2.create_ssl_context()
    with suppress(NotImplementedError):
        context.set_alpn_protocols(["http/1.1"])
    return context
