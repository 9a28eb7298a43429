"""SSRF protection: which URLs may be fetched for a model or a page, and at which addresses.

`check_url` resolves the host and refuses the URL if any of its addresses is not public, in any spelling of
address or host. It returns the checked addresses; the caller must connect to one of them without resolving
again, and must check each redirect. It does not restrict the response of a public server.
"""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple
from urllib.parse import urlsplit

from hermes.errors import ToolError

Resolve = Callable[[str, int], Sequence[str]]
"""Host and port to the numeric addresses of the host; OSError if it has none."""

_MAX_URL_CHARS = 8_192
_DEFAULT_PORTS = {"http": 80, "https": 443}
_SPECIAL_V4 = tuple(
    ipaddress.IPv4Network(network)
    for network in (
        "168.63.129.16/32",  # Azure's host services
        "192.0.0.0/24",  # protocol assignments, a cloud's metadata among them
        "192.88.99.0/24",  # 6to4 relays
    )
)
_SPECIAL_V6 = tuple(
    ipaddress.IPv6Network(network)
    for network in (
        "2001::/23",  # protocol assignments, Teredo among them
        "2002::/16",  # 6to4, retired: traffic would pass through an unknown relay
        "3fff::/20",  # documentation
    )
)
_GLOBAL_V6 = ipaddress.IPv6Network("2000::/3")
_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")
_ISATAP = (b"\x00\x00\x5e\xfe", b"\x02\x00\x5e\xfe")


class Address(NamedTuple):
    ip: str
    port: int


class Target(NamedTuple):
    """The parts of a URL that determine the connection."""

    scheme: str
    host: str
    """ASCII, lower case, without brackets or a trailing dot."""
    port: int


def check_url(url: str, allow_hosts: Iterable[str] = (), resolve: Resolve | None = None) -> list[Address]:
    """The addresses the URL may be fetched from; ToolError('refused') if it may not.

    `allow_hosts` are names, or name:port pairs, whose addresses are not checked.
    """
    target = parse_url(url)
    try:
        ips = (resolve or resolve_host)(target.host, target.port)
    except (OSError, UnicodeError) as error:  # UnicodeError: a label longer than names allow
        raise ToolError(f"the host '{target.host}' cannot be resolved: {error}") from error
    addresses = [Address(ip, target.port) for ip in dict.fromkeys(ips)]
    if not addresses:
        raise ToolError(f"the host '{target.host}' has no address.")
    if not is_allowed(target, allow_hosts):
        for address in addresses:
            if not is_public(address.ip):
                raise _refusal(url, f"'{target.host}' is at {address.ip}, which is not a public address")
    return addresses


def parse_url(url: str) -> Target:
    """Scheme, host and port of an http(s) URL; ToolError('refused') for anything else."""
    if len(url) > _MAX_URL_CHARS or any(char <= " " or char in '\\\x7f"<>^`{|}' for char in url):
        raise _refusal(url, "it contains characters that are not valid in a URL, or is too long")
    try:
        parts = urlsplit(url)
        port = parts.port
        host = _ascii(parts.hostname or "").rstrip(".")
    except ValueError as error:
        raise _refusal(url, f"it cannot be parsed ({error})") from error
    if parts.scheme not in _DEFAULT_PORTS:
        raise _refusal(url, "only http and https can be fetched")
    if "@" in parts.netloc:
        raise _refusal(url, "it contains a user name or password")
    if not host or "%" in host:
        raise _refusal(url, "it names no host")
    if port == 0:
        raise _refusal(url, "port 0 cannot be fetched from")
    return Target(parts.scheme, host, port or _DEFAULT_PORTS[parts.scheme])


def is_allowed(target: Target, allow_hosts: Iterable[str]) -> bool:
    """True if the user exempted this host, or this host and port."""
    bracketed = f"[{target.host}]" if ":" in target.host else target.host
    names = {target.host, bracketed, f"{bracketed}:{target.port}"}
    return any(allowed.lower() in names for allowed in allow_hosts)


def is_public(ip: str) -> bool:
    """True for an address of the public internet; an embedded IPv4 address is checked too."""
    try:
        address = ipaddress.ip_address(ip)
    except ValueError:  # a zone, say
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return _is_public_v4(address)
    embedded = _embedded_v4(address)
    if address.ipv4_mapped is not None or address in _NAT64:  # only another spelling of the embedded address
        return embedded is not None and _is_public_v4(embedded)
    return _is_public_v6(address) and (embedded is None or _is_public_v4(embedded))


def resolve_host(host: str, port: int) -> list[str]:
    """The system resolver's addresses, in its order; it also accepts decimal, octal and hex spellings."""
    infos = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return [str(info[4][0]) for info in infos]


def _is_public_v4(address: ipaddress.IPv4Address) -> bool:
    special = (
        address.is_multicast or address.is_reserved or any(address in network for network in _SPECIAL_V4)
    )
    return address.is_global and not special


def _is_public_v6(address: ipaddress.IPv6Address) -> bool:
    if address.is_multicast or address not in _GLOBAL_V6:
        return False
    return address.is_global and not any(address in network for network in _SPECIAL_V6)


def _embedded_v4(address: ipaddress.IPv6Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that the kernel or a router may read out of an IPv6 address."""
    if address in _NAT64 or address.packed[8:12] in _ISATAP:
        return ipaddress.IPv4Address(address.packed[12:])
    return address.ipv4_mapped


def _ascii(host: str) -> str:
    return host if host.isascii() else host.encode("idna").decode("ascii").lower()


def _refusal(url: str, reason: str) -> ToolError:
    excerpt = url if len(url) <= 200 else url[:200] + "…"
    return ToolError(
        f"the URL {excerpt!r} is refused: {reason}.",
        "To exempt a host of your own: hermes config set web.allow_hosts '[\"host:port\"]'",
        kind="refused",
    )
