"""Who may talk to a server of ours, and where it listens.

On loopback without a token the danger is a web page in the user's browser: it may send requests here, and
with a rebound name even read answers. So the Host must be a loopback name, and requests that a browser says
come from another site are refused. Anywhere else a token is needed. Which header carries it is each server's
own business (its `Door`); nothing here reads a body or knows a route.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import ipaddress
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple
from urllib.parse import urlsplit

from hermes.errors import HermesError, UsageError

Headers = Mapping[bytes, bytes]
"""Lower-case names."""


class Refusal(NamedTuple):
    status: int
    detail: str


@dataclass(frozen=True, slots=True)
class Door:
    """What is one server's own about its token."""

    variable: str
    """The environment variable that holds it."""
    at_stake: str
    """What anyone could do without it."""
    how: str
    """How a request carries it."""
    carries: Callable[[Headers, str], bool]
    """Whether a request does."""


@dataclass(frozen=True, slots=True)
class HttpAccessPolicy:
    door: Door
    token: str | None = field(default=None, repr=False)
    """Required of every request; None: only loopback names are answered to."""

    def refusal(self, headers: Headers, *, signed: bool = False) -> Refusal | None:
        """Why a request with these headers is refused, if it is.

        `signed`: its address carries a proof of its own, so that no token is asked for.
        """
        host = _host_of(f"//{headers.get(b'host', b'').decode('latin-1')}")
        if self.token is not None and not signed and not self.door.carries(headers, self.token):
            return Refusal(401, f"a token is needed: {self.door.how}")
        if self.token is None and not is_loopback(host):
            return Refusal(403, "without a token, only requests to a loopback address are answered")
        origin = headers.get(b"origin")
        if origin is not None and _host_of(origin.decode("latin-1")) != host:
            return Refusal(403, "requests from other sites are refused")
        if headers.get(b"sec-fetch-site", b"none") not in (b"none", b"same-origin"):
            return Refusal(403, "requests from other sites are refused")
        return None


def policy_for(door: Door, host: str, token: str | None) -> HttpAccessPolicy:
    """The policy of a server bound to `host`. UsageError: an address others can reach, and no token."""
    if token is None and not is_loopback(host):
        raise UsageError(
            f"refusing to listen on {host} without a token: anyone could {door.at_stake}",
            f"set {door.variable}, or listen on 127.0.0.1",
        )
    if token is not None and not (token.isascii() and token.isprintable() and len(token) >= 16):
        raise UsageError(
            f"{door.variable} must be at least 16 printable ASCII characters",
            "openssl rand -hex 24 makes one",
        )
    return HttpAccessPolicy(door, token)


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
    """Whether an address is one of this machine's own."""
    return is_loopback(_host_of(url))


@contextlib.contextmanager
def bound(host: str, port: int, backlog: int) -> Iterator[socket.socket]:
    """A listening socket, closed at the end. HermesError: the address is taken or cannot be had."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=backlog)
    except (OSError, OverflowError) as error:
        taken = isinstance(error, OSError) and error.errno == errno.EADDRINUSE
        what = "it is taken" if taken else error
        raise HermesError(
            f"cannot listen on {host} port {port}: {what}", "choose another --host or --port"
        ) from error
    with listener:
        yield listener


@functools.lru_cache(maxsize=64)
def _host_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
