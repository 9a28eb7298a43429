"""hermes.serving with real sockets. Ending by a signal is tested with the servers that do it."""

from __future__ import annotations

import urllib.request

import pytest

from hermes.errors import HermesError
from hermes.serving import listen, serve_in_thread


def test_port_0_gives_a_url_that_serves_until_the_context_ends() -> None:
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    async def greet(request: Request) -> PlainTextResponse:
        return PlainTextResponse("hello")

    with listen("127.0.0.1", 0) as listener:
        app = Starlette(routes=[Route("/", greet)])
        with serve_in_thread(app, listener), urllib.request.urlopen(listener.url, timeout=10) as response:
            assert response.read() == b"hello"
            assert "server" not in response.headers
        port = listener.url.rpartition(":")[2]
        assert port != "0"
    with listen("127.0.0.1", int(port)) as again:  # the socket was closed
        assert again.url == listener.url


def test_a_listener_on_ipv6_has_brackets_in_its_url() -> None:
    with listen("::1", 0) as listener:
        assert listener.url.startswith("http://[::1]:")


def test_an_address_in_use_is_an_error_that_names_it() -> None:
    with listen("127.0.0.1", 0) as listener:
        port = int(listener.url.rpartition(":")[2])
        with pytest.raises(HermesError, match=str(port)), listen("127.0.0.1", port):
            pass
