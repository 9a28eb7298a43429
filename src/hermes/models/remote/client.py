"""The `openai` client of one server: imported and created at the first call, one for each event loop.

`Endpoint` retries and times out, so the client does neither. Redirects are not followed, so that a key is
sent only to the configured address. What the client reads from the environment or reports about this machine
is sent to OpenAI only, not to other servers.
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
    """Creates the client of one target when it is needed."""

    def __init__(self, target: ModelTarget) -> None:
        self._target = target
        self._openai: AsyncOpenAI | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._options: RequestOptions = {}

    def get(self) -> tuple[AsyncOpenAI, RequestOptions]:
        """The running event loop's client, and the options of each request."""
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
    with _without_gc():
        import openai

    return openai.AsyncOpenAI(
        base_url=target.base_url,
        api_key=target.api_key or "none",  # required by the package; `_headers` decides what is sent
        max_retries=0,
        http_client=_http(target),
    )


def _http(target: ModelTarget) -> httpx2.AsyncClient:
    from urllib.request import getproxies

    import httpx2
    import openai

    from hermes.models.remote.connections import ConnectionPool

    loopback = leads_to_loopback(target.base_url)
    # Plain HTTP to this machine needs no certificates, and loading the authorities is slow.
    plain = loopback and not target.base_url.startswith("https:")
    tls = httpx2.create_ssl_context(verify=False) if plain else _shared_tls()
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
    """The headers that each request adds to, or removes from, the client's defaults."""
    from openai import Omit

    added = {*client.default_headers, "x-stainless-retry-count", "x-stainless-read-timeout"}
    foreign = urlsplit(target.base_url).hostname != _OPENAI_HOST
    removed = {name for name in added if foreign and name.lower() not in _NEEDED_HEADERS}
    key = f"Bearer {target.api_key}" if target.api_key else Omit()
    return {**dict.fromkeys(removed, Omit()), "Authorization": key}


@contextmanager
def _without_gc() -> Iterator[None]:
    """Disables garbage collection: the import creates thousands of classes, none of which is garbage."""
    running = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if running:
            gc.enable()


@cache
def _shared_tls() -> ssl.SSLContext:
    """The trusted authorities; loading them takes tens of milliseconds, so clients share them."""
    import httpx2

    return httpx2.create_ssl_context()
