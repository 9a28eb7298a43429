"""Connections, counted by a server that sees each of them come and go."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx2
import pytest

from hermes.models.remote.connections import ConnectionPool
from tests.waiting import await_until

ANSWER = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhi"


class Server:
    """Answers every request with `hi`, as soon as it may."""

    def __init__(self) -> None:
        self.opened = 0
        self.open = 0
        self.asked = 0
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.hangs_up = False
        self.url = ""

    async def connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.opened += 1
        self.open += 1
        try:
            while (await reader.readuntil(b"\r\n\r\n")) and not writer.is_closing():
                self.asked += 1
                await self.may_answer.wait()
                writer.write(ANSWER)
                if self.hangs_up:
                    return
        except (asyncio.IncompleteReadError, ConnectionError):
            return
        finally:
            self.open -= 1
            writer.close()


@asynccontextmanager
async def serving() -> AsyncIterator[Server]:
    server = Server()
    async with await asyncio.start_server(server.connected, "127.0.0.1", 0) as listening:
        server.url = "http://{}:{}/".format(*listening.sockets[0].getsockname())
        yield server
        server.may_answer.set()


def client(idle_s: float = 5.0) -> httpx2.AsyncClient:
    lines = ConnectionPool(httpx2.create_ssl_context(verify=False), idle_s)
    return httpx2.AsyncClient(transport=lines, timeout=10, trust_env=False)


async def all_at_once(http: httpx2.AsyncClient, server: Server, requests: int) -> None:
    server.may_answer.clear()
    before = server.asked
    asked = [asyncio.create_task(http.get(server.url)) for _ in range(requests)]
    await await_until(lambda: server.asked == before + requests)
    server.may_answer.set()
    assert [response.text for response in await asyncio.gather(*asked)] == ["hi"] * requests


async def test_requests_one_after_another_share_a_connection() -> None:
    async with serving() as server, client() as http:
        for _ in range(5):
            assert (await http.get(server.url)).text == "hi"
        assert server.opened == 1


async def test_requests_at_the_same_time_have_a_connection_each_and_leave_it_to_those_that_follow() -> None:
    async with serving() as server, client() as http:
        await all_at_once(http, server, 20)
        await all_at_once(http, server, 20)
        assert server.opened == 20


async def test_a_connection_that_the_server_closed_is_opened_again() -> None:
    async with serving() as server, client() as http:
        server.hangs_up = True
        for count in range(1, 4):
            assert (await http.get(server.url)).text == "hi"
            await await_until(lambda: not server.open)
            assert server.opened == count


async def test_connections_that_nobody_needs_any_more_are_closed() -> None:
    async with serving() as server, client(idle_s=0.05) as http:
        await all_at_once(http, server, 10)
        await asyncio.sleep(0.1)
        await http.get(server.url)
        await await_until(lambda: server.open == 1)


async def test_a_cancelled_request_gives_its_line_back() -> None:
    async with serving() as server, client() as http:
        server.may_answer.clear()
        asked = asyncio.create_task(http.get(server.url))
        await await_until(lambda: server.asked)
        asked.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asked
        server.may_answer.set()
        await await_until(lambda: not server.open)
        assert (await http.get(server.url)).text == "hi"


async def test_an_answer_that_is_not_read_to_its_end_gives_its_line_back() -> None:
    async with serving() as server, client() as http:
        for _ in range(3):
            async with http.stream("GET", server.url) as response:
                assert response.status_code == 200
        await await_until(lambda: server.open == 0)
        assert (await http.get(server.url)).text == "hi"


async def test_closing_the_client_closes_every_connection_in_use_or_not() -> None:
    async with serving() as server:
        http = client()
        await all_at_once(http, server, 3)
        server.may_answer.clear()
        asked = asyncio.create_task(http.get(server.url))
        await await_until(lambda: server.asked == 4)
        await http.aclose()
        await asyncio.gather(asked, return_exceptions=True)
        server.may_answer.set()
        await await_until(lambda: server.open == 0)
