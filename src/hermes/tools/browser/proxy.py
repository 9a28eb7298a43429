"""The browser's only network access: a proxy on loopback that applies SSRF protection to every connection.

A check inside the browser is not enough: redirects, web sockets, workers and names that resolve differently
the second time bypass it. So the browser sends everything here, loopback included. Each target is resolved
and checked by `safety.urls`, and the connection goes to a checked address.

HTTPS is tunnelled, never decrypted. Plain HTTP is one request per connection, which keeps the relay simple
and ensures that no second request uses a connection that was checked for another host.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from functools import partial
from urllib.parse import urlsplit

from hermes.errors import ToolError
from hermes.safety.urls import check_url
from hermes.serving import listen
from hermes.serving.peers import are_told_apart, is_own

MAX_HEAD_BYTES = 64_000
CONNECT_TIMEOUT_S = 15.0
PROXY_HEADER = "x-hermes-proxy"
"""Set on responses of the proxy itself."""
_HOP_HEADERS = ("connection", "proxy-connection", "proxy-authorization", "keep-alive", PROXY_HEADER)


class GuardedProxy:
    """Listens between `start` and `close`."""

    def __init__(self, allow_hosts: tuple[str, ...]) -> None:
        self.refusals = 0
        """Number of refused requests."""
        self._unreported: deque[str] = deque(maxlen=20)
        self._allow_hosts = allow_hosts
        self._server: asyncio.Server | None = None
        self._stack = contextlib.ExitStack()
        self._tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> str:
        """Starts listening; returns the proxy's URL."""
        listener = self._stack.enter_context(listen("127.0.0.1", 0))
        self._server = await asyncio.start_server(
            partial(self._serve, told_apart=are_told_apart(listener.socket)),
            sock=listener.socket,
            limit=MAX_HEAD_BYTES,
        )
        return listener.url

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in tuple(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._stack.close()

    def take_refusals(self) -> list[str]:
        """The latest refusals since the last call, with their reasons."""
        refusals = list(self._unreported)
        self._unreported.clear()
        return refusals

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, told_apart: bool
    ) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._handle(reader, writer, told_apart)
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            pass  # the browser or the server disconnected, or sent no HTTP: the connection ends
        finally:
            self._tasks.discard(task)
            writer.close()

    async def _handle(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, told_apart: bool
    ) -> None:
        line, headers = _split_head(await reader.readuntil(b"\r\n\r\n"))
        ends = writer.get_extra_info("peername"), writer.get_extra_info("sockname")
        if told_apart and not is_own(*ends):
            await _respond(writer, "403 Forbidden", "this proxy serves the browser of one user")
            return
        method, _, rest = line.partition(" ")
        target = rest.partition(" ")[0]
        url = f"https://{target}/" if method == "CONNECT" else target
        try:
            server = await self._connect(url)
        except ToolError as error:
            await self._refuse(error, writer)
            return
        except OSError as error:
            await _respond(writer, "502 Bad Gateway", f"cannot connect to {url}: {error}")
            return
        with contextlib.closing(server[1]):
            if method == "CONNECT":
                writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                await asyncio.gather(_pump(reader, server[1]), _pump(server[0], writer))
            else:
                await _exchange(reader, writer, *server, _request_line(method, url), headers)

    async def _refuse(self, error: ToolError, writer: asyncio.StreamWriter) -> None:
        if error.kind != "refused":  # a name without an address, say
            await _respond(writer, "502 Bad Gateway", error.message)
            return
        self.refusals += 1
        self._unreported.append(error.message)
        await _respond(writer, "403 Forbidden", error.message)

    async def _connect(self, url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        failure: OSError = ConnectionError("the name has no address")
        for address, port in await asyncio.to_thread(check_url, url, self._allow_hosts):
            try:
                async with asyncio.timeout(CONNECT_TIMEOUT_S):
                    return await asyncio.open_connection(address, port, limit=MAX_HEAD_BYTES)
            except OSError as error:  # TimeoutError is one
                failure = error
        raise failure


async def _exchange(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    server_reader: asyncio.StreamReader,
    server_writer: asyncio.StreamWriter,
    request_line: str,
    headers: list[str],
) -> None:
    """One request and its response, both marked as the connection's last."""
    server_writer.write(_join_head(request_line, headers))
    body = asyncio.create_task(_pump(reader, server_writer, end=False))
    try:
        while True:
            line, headers = _split_head(await server_reader.readuntil(b"\r\n\r\n"))
            interim = line.split(" ")[1:2] in (["100"], ["102"], ["103"])
            writer.write(_join_head(line, headers))
            if not interim:
                break
        await _pump(server_reader, writer)
    finally:
        body.cancel()
        await asyncio.wait({body})


async def _pump(source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, end: bool = True) -> None:
    """Copies until the source ends; with `end` it also ends the sink."""
    try:
        while data := await source.read(65_536):
            sink.write(data)
            await sink.drain()
        if end and sink.can_write_eof():
            sink.write_eof()
    except OSError:
        sink.close()  # one direction broke; closing ends the other


async def _respond(writer: asyncio.StreamWriter, status: str, reason: str) -> None:
    """Sends a response instead of the server."""
    body = reason.encode()
    head = f"HTTP/1.1 {status}\r\n{PROXY_HEADER}: 1\r\nContent-Type: text/plain; charset=utf-8\r\n"
    writer.write(f"{head}Content-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body)
    await writer.drain()


def _request_line(method: str, url: str) -> str:
    parts = urlsplit(url)
    query = f"?{parts.query}" if parts.query else ""
    return f"{method} {parts.path or '/'}{query} HTTP/1.1"


def _split_head(head: bytes) -> tuple[str, list[str]]:
    """First line and headers, without hop-by-hop headers."""
    line, *headers = head.decode("latin-1").rstrip("\r\n").split("\r\n")
    return line, [
        header for header in headers if header.partition(":")[0].strip().lower() not in _HOP_HEADERS
    ]


def _join_head(line: str, headers: list[str]) -> bytes:
    return "\r\n".join([line, *headers, "Connection: close", "", ""]).encode("latin-1")
