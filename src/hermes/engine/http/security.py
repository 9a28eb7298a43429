"""Who may talk to the engine. Pure: decisions on headers, no I/O.

On loopback without a token any key is taken, because the public SDK insists on sending one; the danger there
is a web page in the user's browser, so the Host must be a loopback name and requests that a browser says come
from another site are refused. Anywhere else a token is needed: as `X-API-Key: tml-TOKEN` (the SDK only sends
keys that begin so) or `Authorization: Bearer TOKEN`.
"""

from __future__ import annotations

import functools
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from hermes.errors import UsageError

TOKEN_VARIABLE = "HERMES_ENGINE_TOKEN"
KEY_PREFIX = "tml-"


class Refusal(NamedTuple):
    status: int
    detail: str


@dataclass(frozen=True, slots=True)
class Policy:
    token: str | None = field(default=None, repr=False)
    """Required of every request; None: only loopback names are answered to."""

    def refusal(self, headers: Mapping[bytes, bytes], *, signed: bool = False) -> Refusal | None:
        """Why a request with these headers (lower-case names) is refused, if it is.

        `signed`: its address carries a proof of its own, so that no token is asked for.
        """
        host = _host_of(f"//{headers.get(b'host', b'').decode('latin-1')}")
        if self.token is not None and not signed and not _has_token(headers, self.token):
            return Refusal(401, f"a token is needed: X-API-Key: {KEY_PREFIX}TOKEN or Authorization: Bearer")
        if self.token is None and not is_loopback(host):
            return Refusal(403, "without a token, only requests to a loopback address are answered")
        origin = headers.get(b"origin")
        if origin is not None and _host_of(origin.decode("latin-1")) != host:
            return Refusal(403, "requests from other sites are refused")
        if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            return Refusal(403, "requests from other sites are refused")
        return None


def policy_for(host: str, token: str | None) -> Policy:
    """The policy of a server bound to `host`. UsageError: an address others can reach, and no token."""
    if token is None and not is_loopback(host):
        raise UsageError(
            f"refusing to listen on {host} without a token: anyone could use and delete the adapters",
            f"set {TOKEN_VARIABLE}, or listen on 127.0.0.1",
        )
    if token is not None and not (token.isascii() and token.isprintable() and len(token) >= 16):
        raise UsageError(
            f"{TOKEN_VARIABLE} must be at least 16 printable ASCII characters",
            "openssl rand -hex 24 makes one",
        )
    return Policy(token)


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


@functools.lru_cache(maxsize=64)
def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _has_token(headers: Mapping[bytes, bytes], token: str) -> bool:
    scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
    key = bearer.strip() if scheme.lower() == b"bearer" else headers.get(b"x-api-key", b"")
    return hmac.compare_digest(key.removeprefix(KEY_PREFIX.encode()), token.removeprefix(KEY_PREFIX).encode())
