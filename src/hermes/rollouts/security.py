"""Who may talk to the server. Pure: decisions on headers, no I/O.

On loopback without a token the danger is a web page in the user's browser: it may send requests here, and
with a rebound name even read answers. So the Host must be a loopback name, and requests that a browser says
come from another site are refused. Anywhere else a token is needed, which may also be given as the password
of a URL (http://hermes:TOKEN@host:8000), so that clients that know nothing of tokens can have one.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hmac
import ipaddress
from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

from hermes.errors import UsageError

TOKEN_VARIABLE = "HERMES_API_TOKEN"


class Refusal(NamedTuple):
    status: int
    detail: str


@dataclass(frozen=True, slots=True)
class Policy:
    token: str | None = None
    """Required of every request; None: only loopback names are answered to."""

    def refusal(self, headers: Mapping[bytes, bytes]) -> Refusal | None:
        """Why a request with these headers (lower-case names) is refused, if it is."""
        host = _host_of(f"//{headers.get(b'host', b'').decode('latin-1')}")
        if self.token is not None and not _has_token(headers.get(b"authorization", b""), self.token):
            return Refusal(
                401, f"a token is needed: Authorization: Bearer, or http://hermes:TOKEN@{host or 'host'}"
            )
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
            f"refusing to listen on {host} without a token: anyone could read and reset the run",
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


def _has_token(authorization: bytes, token: str) -> bool:
    scheme, _, value = authorization.partition(b" ")
    given = value.strip()
    if scheme.lower() == b"basic":
        try:
            given = base64.b64decode(given, validate=True).partition(b":")[2]
        except binascii.Error:
            return False
    elif scheme.lower() != b"bearer":
        return False
    return hmac.compare_digest(given, token.encode())
