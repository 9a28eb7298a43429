"""Access control of Hermes's servers: which requests are accepted, and where a server listens.

On loopback without a token the threats are the other users of the machine, whose connections `serving`
refuses, and a web page in the user's browser: it can send requests here and, with DNS rebinding, read the
responses. So the Host must be a loopback name, and requests that the browser marks as cross-site are refused.
On any other address a token is required. Each server's `TokenScheme` says how a request carries it; nothing
here depends on bodies or routes.

An origin is our own if scheme, host and port are. A proxy that ends TLS in front of a server has to pass Host
and send `X-Forwarded-Proto: https`, which no page can add to a request of another origin.
"""

from __future__ import annotations

import functools
import ipaddress
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from hermes.errors import UsageError

Headers = Mapping[bytes, bytes]
"""Lower-case names."""


class Refusal(NamedTuple):
    status: int
    detail: str


@dataclass(frozen=True, slots=True)
class TokenScheme:
    """How one server uses its token."""

    variable: str
    """The environment variable that holds the token."""
    at_stake: str
    """The harm that anyone could do without a token; completes "anyone could …"."""
    how: str
    """How a request carries the token, for error messages."""
    carries: Callable[[Headers, str], bool]
    """Whether the headers carry the given token."""


NO_TOKEN = TokenScheme("", "use it", "this server has none", lambda headers, token: False)
"""For servers on loopback that serve the processes of one user."""


@dataclass(frozen=True, slots=True)
class HttpAccessPolicy:
    scheme: TokenScheme
    token: str | None = field(default=None, repr=False)
    """Required of every request; None: only requests to a loopback name are accepted."""
    any_user: bool = False
    """Without a token: answer every user of this machine, not only the one who started the server."""

    @property
    def only_user(self) -> bool:
        return self.token is None and not self.any_user

    def refusal(self, headers: Headers, *, signed: bool = False) -> Refusal | None:
        """The refusal of a request with these headers, if it is refused.

        `signed`: the URL is signed, so that no token is required.
        """
        authority = headers.get(b"host", b"").decode("latin-1").lower()
        host = _host_of(f"//{authority}")
        if self.token is not None and not signed and not self.scheme.carries(headers, self.token):
            return Refusal(401, f"a token is needed: {self.scheme.how}")
        if self.token is None and not is_loopback(host):
            return Refusal(403, "without a token, only requests to a loopback address are answered")
        scheme = "https" if headers.get(b"x-forwarded-proto") == b"https" else "http"
        own_origin = f"{scheme}://{authority}"
        origin = headers.get(b"origin")
        is_foreign = origin is not None and origin.decode("latin-1").lower() != own_origin
        is_foreign |= headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin")
        referer = headers.get(b"referer")  # browsers without Sec-Fetch-*
        is_foreign |= referer is not None and _origin_of(referer.decode("latin-1")) != own_origin
        return Refusal(403, "requests from other sites are refused") if is_foreign else None


def is_browser(headers: Headers) -> bool:
    """Whether a browser sent the request, such as for an address that was typed, bookmarked or prefetched."""
    return any(name.startswith(b"sec-fetch-") or name == b"sec-purpose" for name in headers)


def policy_for(
    scheme: TokenScheme, host: str, token: str | None, *, any_user: bool = False
) -> HttpAccessPolicy:
    """The policy of a server on `host`. UsageError without a token if the address is not loopback."""
    if token is None and not is_loopback(host):
        raise UsageError(
            f"refusing to listen on {host} without a token: anyone could {scheme.at_stake}",
            f"set {scheme.variable}, or listen on 127.0.0.1" if scheme.variable else "listen on 127.0.0.1",
        )
    check_token(scheme.variable, token)
    return HttpAccessPolicy(scheme, token, any_user)


def check_token(variable: str, token: str | None, *, differs_from: str | None = None) -> None:
    """UsageError: the token is too short to be one, or is that other token."""
    if token is None:
        return
    if not (token.isascii() and token.isprintable() and len(token) >= 16):
        raise UsageError(
            f"{variable} must be at least 16 printable ASCII characters", "openssl rand -hex 24 makes one"
        )
    if token == differs_from:
        raise UsageError(f"{variable} is the same as the other token", "openssl rand -hex 24 makes one")


@functools.lru_cache(maxsize=64)
def is_loopback(host: str | None) -> bool:
    if host is None:
        return False
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def leads_to_loopback(url: str) -> bool:
    """Whether the URL's host is this machine's loopback."""
    return is_loopback(_host_of(url))


@functools.lru_cache(maxsize=64)
def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


@functools.lru_cache(maxsize=64)
def _origin_of(url: str) -> str:
    try:
        parts = urlsplit(url.lower())
    except ValueError:
        return ""
    return f"{parts.scheme}://{parts.netloc}"
