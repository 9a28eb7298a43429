"""The browser's proxy, spoken to over raw sockets."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest

from hermes.tools.browser.proxy import MAX_HEAD_BYTES, GuardedProxy
from tests.fakes.site import Page, Request, Site

Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def echo_page(request: Request) -> Page:
    return Page(request.body, "text/plain", headers={"X-Method": request.method, "Keep-Alive": "timeout=5"})


@pytest.fixture
def site() -> Iterator[Site]:
    with Site({"/echo": echo_page}) as running:
        yield running


@asynccontextmanager
async def proxied(*allow_hosts: str) -> AsyncIterator[tuple[GuardedProxy, int]]:
    proxy = GuardedProxy(allow_hosts)
    port = urlsplit(await proxy.start()).port
    assert port is not None
    try:
        yield proxy, port
    finally:
        await proxy.close()


@asynccontextmanager
async def server(serve: Serve) -> AsyncIterator[str]:
    running = await asyncio.start_server(serve, "127.0.0.1", 0)
    async with running:
        yield f"127.0.0.1:{running.sockets[0].getsockname()[1]}"


async def exchange(port: int, request: bytes) -> bytes:
    """Everything the proxy answers until it ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await reader.read()
    writer.close()
    return answer


async def test_a_request_is_passed_on_as_the_connections_only_one(site: Site) -> None:
    head = f"POST {site.url('/echo?a=1')} HTTP/1.1\r\nHost: {site.host}\r\nX-Own: kept\r\n"
    head += "Proxy-Connection: keep-alive\r\nProxy-Authorization: Basic eA==\r\nContent-Length: 4\r\n\r\nclay"
    async with proxied(site.host) as (_, port):
        answer = await exchange(port, head.encode())
    (request,) = site.requests
    assert (request.path, request.body, request.headers["x-own"]) == ("/echo?a=1", b"clay", "kept")
    assert request.headers["connection"] == "close"
    assert not {"proxy-connection", "proxy-authorization"} & set(request.headers)
    head_lines, _, body = answer.decode().partition("\r\n\r\n")
    assert head_lines.startswith("HTTP/1.1 200") and body == "clay"
    assert "X-Method: POST" in head_lines and "Connection: close" in head_lines
    assert "Keep-Alive" not in head_lines


async def test_a_tunnel_carries_bytes_both_ways_until_both_ends_are_done() -> None:
    async def reverse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.read())[::-1])
        writer.close()

    async with server(reverse) as host, proxied(host) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(f"CONNECT {host} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert b" 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(bytes(range(256)) * 1000)
        writer.write_eof()
        assert await reader.read() == (bytes(range(256)) * 1000)[::-1]
        writer.close()


@pytest.mark.parametrize("form", ["CONNECT {host}", "GET http://{host}/echo", "GET http://x@{host}/echo"])
async def test_a_target_that_is_not_allowed_is_refused_and_reported(site: Site, form: str) -> None:
    async with proxied() as (proxy, port):
        answer = await exchange(port, f"{form.format(host=site.host)} HTTP/1.1\r\n\r\n".encode())
        assert answer.startswith(b"HTTP/1.1 403 ") and b"is refused" in answer
        assert proxy.refusals == 1
        assert len(proxy.take_refusals()) == 1
        assert proxy.take_refusals() == []
    assert site.requests == []


async def test_a_target_that_cannot_be_reached_is_an_answer_of_its_own(site: Site) -> None:
    with Site() as gone:
        host = gone.host
    async with proxied(host) as (proxy, port):
        answer = await exchange(port, f"GET http://{host}/ HTTP/1.1\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 502 ") and proxy.refusals == 0


async def test_an_interim_response_is_passed_on_before_the_final_one() -> None:
    async def hint(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
        writer.close()

    async with server(hint) as host, proxied(host) as (_, port):
        answer = await exchange(port, f"GET http://{host}/ HTTP/1.1\r\n\r\n".encode())
    assert answer.startswith(b"HTTP/1.1 103 ") and answer.endswith(b"\r\n\r\nok")


@pytest.mark.parametrize(
    "junk", [b"\r\n\r\n", b"GET\r\n\r\n", b"\x16\x03\x01\0\r\n\r\n", b"x" * (2 * MAX_HEAD_BYTES)]
)
async def test_what_is_no_request_ends_only_its_own_connection(site: Site, junk: bytes) -> None:
    async with proxied(site.host) as (_, port):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(junk)
        answer = await asyncio.gather(reader.read(), return_exceptions=True)
        assert isinstance(answer[0], OSError) or b"HTTP/1.1 200" not in answer[0]
        writer.close()
        good = await exchange(port, f"GET {site.url('/echo')} HTTP/1.1\r\nHost: {site.host}\r\n\r\n".encode())
    assert good.startswith(b"HTTP/1.1 200")


async def test_closing_ends_tunnels_that_are_still_open() -> None:
    async def silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with server(silent) as host:
        async with proxied(host) as (_, port):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(f"CONNECT {host} HTTP/1.1\r\n\r\n".encode())
            await reader.readuntil(b"\r\n\r\n")
        assert await reader.read() == b""
        writer.close()
