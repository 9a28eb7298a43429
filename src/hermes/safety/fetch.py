"""Fetches a URL that a model or a page chose.

The connection goes to an address that `safety.urls` has checked, with the URL's host in the Host header and
in TLS; each redirect is checked again; proxies from the environment are not used, because a proxy would
choose the address. Time and size are bounded, including the size after decompression. The body is data:
nothing in it is executed or followed.
"""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urldefrag, urljoin

from hermes.errors import ToolError
from hermes.safety.urls import Address, Resolve, Target, check_url, parse_url

if TYPE_CHECKING:
    import ssl

    import httpx2

MAX_REDIRECTS = 5
_REDIRECTS = (301, 302, 303, 307, 308)
_HEADERS = {
    "User-Agent": "hermes-research",
    "Accept": "text/html,application/xhtml+xml,application/json,text/plain,*/*;q=0.5",
    "Accept-Encoding": "gzip",
}


@dataclass(frozen=True, slots=True)
class FetchedPage:
    url: str
    """URL of the body, after redirects."""
    status: int
    content_type: str
    """As the server sent it, parameters included; '' if it sent none."""
    body: bytes


async def fetch(
    url: str,
    *,
    allow_hosts: Iterable[str],
    max_bytes: int,
    timeout_s: float,
    max_redirects: int = MAX_REDIRECTS,
    resolve: Resolve | None = None,
    headers: Mapping[str, str] | None = None,
) -> FetchedPage:
    """GETs the URL; any status is a result. ToolError if it is refused, too slow, too large or malformed.

    `headers` may contain a credential: they are sent only to the URL's scheme, host and port, not to another
    one after a redirect.
    """
    allowed = tuple(allow_hosts)
    current = url
    try:
        async with asyncio.timeout(timeout_s):
            for _ in range(max_redirects + 1):
                addresses = await asyncio.to_thread(check_url, current, allowed, resolve)
                same_origin = parse_url(current) == parse_url(url)
                sent_headers = headers if headers and same_origin else {}
                page_or_url = await _get(current, addresses, max_bytes, sent_headers)
                if isinstance(page_or_url, FetchedPage):
                    return page_or_url
                current = page_or_url
    except TimeoutError as error:
        raise ToolError(
            f"{url} did not send a complete response within {timeout_s:g} s.", kind="timeout"
        ) from error
    raise ToolError(f"{url} leads to more than {max_redirects} redirects.")


async def _get(
    url: str, addresses: list[Address], max_bytes: int, headers: Mapping[str, str]
) -> FetchedPage | str:
    """The page from the first address that accepts a connection, or the URL it redirects to."""
    import httpx2

    failure: Exception | None = None
    # One client per request: no connection or cookie is reused for another host at the same address.
    async with httpx2.AsyncClient(trust_env=False, verify=_tls(), timeout=None) as client:
        for address in addresses:
            try:
                response = await client.send(_request(client, url, address, headers), stream=True)
                return await _read(response, url, max_bytes)
            except httpx2.ConnectError as error:
                failure = error
            except (httpx2.HTTPError, httpx2.InvalidURL) as error:
                failure = error
                break
    raise ToolError(f"{url} cannot be fetched: {str(failure) or type(failure).__name__}") from failure


def _request(
    client: httpx2.AsyncClient, url: str, address: Address, headers: Mapping[str, str]
) -> httpx2.Request:
    import httpx2

    target = parse_url(url)
    return client.build_request(
        "GET",
        httpx2.URL(url).copy_with(host=address.ip, port=address.port),
        headers={**_HEADERS, **headers, "Host": _host_header(target)},
        extensions={"sni_hostname": target.host},
    )


@cache
def _tls() -> ssl.SSLContext:
    """Includes the user's certificate authorities (SSL_CERT_FILE); cached, because reading them is slow."""
    import httpx2

    return httpx2.create_ssl_context()


def _host_header(target: Target) -> str:
    host = f"[{target.host}]" if ":" in target.host else target.host
    default = 443 if target.scheme == "https" else 80
    return host if target.port == default else f"{host}:{target.port}"


async def _read(response: httpx2.Response, url: str, max_bytes: int) -> FetchedPage | str:
    location = response.headers.get("location")
    if response.status_code in _REDIRECTS and location:
        return urldefrag(urljoin(url, location)).url
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "", "gzip", "x-gzip"):
        raise ToolError(f"{url} is compressed as '{encoding}', which was not requested.")
    unzip = zlib.decompressobj(wbits=31) if "gzip" in encoding else None
    body = bytearray()
    async for chunk in response.aiter_raw():
        try:
            body += unzip.decompress(chunk, max_bytes + 1 - len(body)) if unzip else chunk
        except zlib.error as error:
            raise ToolError(f"{url} is sent as gzip, but is not: {error}.") from error
        if len(body) > max_bytes:
            raise ToolError(f"{url} is larger than {max_bytes} bytes.")
    return FetchedPage(url, response.status_code, response.headers.get("content-type", ""), bytes(body))
