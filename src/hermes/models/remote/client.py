"""The `openai` client of one server: imported and made at the first call, anew for each event loop.

Retries and time limits are the endpoint's, so the client has none of its own. Redirects are not followed, so
that a key goes nowhere but to the configured address; and what the client takes from the environment or tells
about this machine goes to OpenAI itself and to no other server.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hermes.safety.access import leads_to_loopback

if TYPE_CHECKING:
    import ssl

    import httpx2
    from openai import AsyncOpenAI, Omit, RequestOptions

    from hermes.config.providers import ModelTarget

_CONNECT_TIMEOUT_S = 10.0
_OPENAI_HOST = "api.openai.com"
_NEEDED_HEADERS = frozenset({"accept", "content-type", "user-agent"})


class Client:
    """Where the requests of one target go through."""

    def __init__(self, target: ModelTarget) -> None:
        self._target = target
        self._openai: AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._options: RequestOptions = {}

    def connected(self) -> tuple[AsyncOpenAI, RequestOptions]:
        """The running loop's client, whose connections cannot move to another, and each request's options."""
        loop = asyncio.get_running_loop()
        if self._openai is None or self._loop is not loop:
            self._openai, self._loop = _connect(self._target), loop
            self._options = {"headers": _headers(self._target, self._openai)}
        return self._openai, self._options

    async def close(self) -> None:
        if self._openai is not None and self._loop is asyncio.get_running_loop():
            await self._openai.close()
        self._openai = None


def _connect(target: ModelTarget) -> AsyncOpenAI:
    with _uncollected():
        import openai

    return openai.AsyncOpenAI(
        base_url=target.base_url,
        api_key=target.api_key or "none",  # it insists on one; `_headers` says what is sent
        max_retries=0,
        http_client=_http(target),
    )


def _http(target: ModelTarget) -> httpx2.AsyncClient:
    from urllib.request import getproxies

    import httpx2
    import openai

    from hermes.models.remote.connections import ConnectionPool

    loopback = leads_to_loopback(target.base_url)
    # Plain HTTP to this machine has no certificates, and reading the authorities takes its time.
    plain = loopback and not target.base_url.startswith("https:")
    tls = httpx2.create_ssl_context(verify=False) if plain else _trust()
    # A proxy from the environment cannot reach this machine's own servers.
    proxied = not loopback and bool(getproxies())
    return openai.DefaultAsyncHttpx2Client(
        timeout=openai.Timeout(None, connect=_CONNECT_TIMEOUT_S),
        limits=httpx2.Limits(max_keepalive_connections=target.settings.max_concurrency),
        follow_redirects=False,
        verify=tls,
        trust_env=proxied,
        transport=None if proxied else ConnectionPool(tls),
    )


def _headers(target: ModelTarget, client: AsyncOpenAI) -> dict[str, str | Omit]:
    """What each request adds to, and takes away from, the headers that the client would send by itself."""
    from openai import Omit

    added = {*client.default_headers, "x-stainless-retry-count", "x-stainless-read-timeout"}
    foreign = urlsplit(target.base_url).hostname != _OPENAI_HOST
    removed = {name for name in added if foreign and name.lower() not in _NEEDED_HEADERS}
    key = f"Bearer {target.api_key}" if target.api_key else Omit()
    return {**dict.fromkeys(removed, Omit()), "Authorization": key}


@contextmanager
def _uncollected() -> Iterator[None]:
    """No garbage collection meanwhile: the package makes thousands of classes, which are there to stay."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


@cache
def _trust() -> ssl.SSLContext:
    """The authorities to trust; reading them takes tens of milliseconds, so clients share them."""
    import httpx2

    return httpx2.create_ssl_context()
