"""Where calls go: the providers behind the gateway, and the connections to them.

A response is read as it arrives and passed on byte for byte. No cookies, no redirects, no retries:
those are the client's business.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from hermes.errors import ProviderError
from hermes.gateway.wire import Protocol
from hermes.safety.access import leads_to_loopback

if TYPE_CHECKING:
    import httpx2

RawHeaders = list[tuple[bytes, bytes]]
_CONNECT_S = 10.0
_KEY_HEADERS = frozenset((b"authorization", b"x-api-key", b"api-key", b"x-goog-api-key"))
_HOP_BY_HOP = frozenset(
    (
        *(b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"proxy-connection"),
        *(b"te", b"trailer", b"transfer-encoding", b"upgrade", b"host", b"content-length", b"expect"),
    )
)
_DECODED = (b"gzip", b"deflate", b"identity")
"""Codings of a response that the record can read."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """One provider."""

    name: str
    """In the names of models: provider/model."""
    base_url: str
    """Without a slash at its end; mostly ends in /v1."""
    protocols: frozenset[Protocol]
    """What it speaks; others are translated to chat completions."""
    key: str | None = field(default=None, repr=False)
    """Sent in place of the client's own; None: the client's own is passed on."""
    model: str | None = None
    """Asked in place of the one that the client names."""

    @property
    def root(self) -> str:
        return self.base_url.removesuffix("/v1")


ANTHROPIC = Upstream("anthropic", "https://api.anthropic.com/v1", frozenset({Protocol.MESSAGES}))
OPENAI = Upstream("openai", "https://api.openai.com/v1", frozenset({Protocol.CHAT, Protocol.RESPONSES}))
CHATGPT = Upstream("openai", "https://chatgpt.com/backend-api/codex", frozenset({Protocol.RESPONSES}))
_SPOKEN = {
    "api.anthropic.com": ANTHROPIC.protocols,
    "api.openai.com": OPENAI.protocols,
    "chatgpt.com": CHATGPT.protocols,
    "openrouter.ai": frozenset(Protocol),
}


def spoken_at(base_url: str) -> frozenset[Protocol]:
    """What the provider at an address speaks, as far as its name says; else chat completions."""
    return _SPOKEN.get(urlsplit(base_url).hostname or "", frozenset({Protocol.CHAT}))


@dataclass(frozen=True, slots=True)
class Accounts:
    """The providers of the client's own accounts."""

    anthropic: Upstream = ANTHROPIC
    openai: Upstream = OPENAI

    @classmethod
    def of(cls, environ: Mapping[str, str]) -> Accounts:
        """As the variables say that clients would be pointed at."""
        anthropic = environ.get("ANTHROPIC_BASE_URL", "").rstrip("/").removesuffix("/v1")
        openai = (environ.get("OPENAI_BASE_URL") or environ.get("OPENAI_API_BASE") or "").rstrip("/")
        return cls(
            replace(ANTHROPIC, base_url=f"{anthropic}/v1") if anthropic else ANTHROPIC,
            replace(OPENAI, base_url=openai) if openai else OPENAI,
        )

    def choose(self, protocol: Protocol | None, headers: Mapping[str, str]) -> Upstream:
        if "chatgpt-account-id" in headers:
            return CHATGPT
        anthropic = protocol is Protocol.MESSAGES or (protocol is None and "anthropic-version" in headers)
        return self.anthropic if anthropic else self.openai


def request_headers(raw: Iterable[tuple[bytes, bytes]], upstream: Upstream) -> RawHeaders:
    """The client's headers as the provider gets them: all but those that are about this one connection."""
    headers = end_to_end(raw)
    if upstream.key is not None:
        headers = [(name, value) for name, value in headers if name.lower() not in _KEY_HEADERS]
        if upstream.base_url.startswith(ANTHROPIC.root):
            headers.append((b"x-api-key", upstream.key.encode()))
        else:
            headers.append((b"authorization", b"Bearer " + upstream.key.encode()))
    return [
        (name, _readable_codings(value) if name.lower() == b"accept-encoding" else value)
        for name, value in headers
    ]


def end_to_end(raw: Iterable[tuple[bytes, bytes]]) -> RawHeaders:
    headers = list(raw)
    dropped = set(_HOP_BY_HOP)
    for name, value in headers:
        if name.lower() == b"connection":
            dropped.update(word.strip().lower() for word in value.split(b","))
    return [(name, value) for name, value in headers if name.lower() not in dropped]


def _readable_codings(value: bytes) -> bytes:
    codings = [part.strip() for part in value.split(b",")]
    return b", ".join(part for part in codings if part.partition(b";")[0] in _DECODED) or b"identity"


class Connections:
    """The connections to all providers, of one event loop."""

    def __init__(self, timeout_s: float) -> None:
        """`timeout_s`: longest silence of a provider."""
        self._timeout = {"connect": _CONNECT_S, "read": timeout_s, "write": timeout_s, "pool": None}
        self._transports: dict[str, httpx2.AsyncBaseTransport] = {}

    async def send(self, method: str, url: str, headers: RawHeaders, content: bytes) -> httpx2.Response:
        """The response with its body unread. ProviderError: there is none."""
        import httpx2

        request = httpx2.Request(
            method, url, headers=headers, content=content or None, extensions={"timeout": self._timeout}
        )
        host = urlsplit(url).hostname or url
        try:
            return await self._transport(url).handle_async_request(request)
        except httpx2.TimeoutException as error:
            raise ProviderError(f"{host} did not answer in time", status=504) from error
        except (httpx2.HTTPError, ssl.SSLError, OSError) as error:
            raise ProviderError(f"{host} cannot be reached: {error}", status=502) from error

    async def close(self) -> None:
        await asyncio.gather(*(transport.aclose() for transport in self._transports.values()))

    def _transport(self, url: str) -> httpx2.AsyncBaseTransport:
        parts = urlsplit(url)
        origin = f"{parts.scheme}://{parts.netloc}"
        if origin not in self._transports:
            self._transports[origin] = _open_transport(url)
        return self._transports[origin]


def _open_transport(url: str) -> httpx2.AsyncBaseTransport:
    from urllib.request import getproxies, proxy_bypass

    import httpx2

    from hermes.models.remote.connections import ConnectionPool

    parts = urlsplit(url)
    proxy = getproxies().get(parts.scheme)
    if proxy and not leads_to_loopback(url) and not proxy_bypass(parts.hostname or ""):
        limits = httpx2.Limits(max_connections=None, max_keepalive_connections=100)
        return httpx2.AsyncHTTPTransport(proxy=httpx2.Proxy(proxy), limits=limits)
    verify = parts.scheme == "https"
    return ConnectionPool(httpx2.create_ssl_context() if verify else httpx2.create_ssl_context(verify=False))
