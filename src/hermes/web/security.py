"""Who may use the web app, and what its pages may do.

Promises:

- Every request passes `hermes.safety.access` first: loopback names only without a token; with one, the token
  as `Authorization: Bearer` or as the cookie that the sign-in page sets. Requests of other sites are refused.
- A request that changes something is refused unless the browser states that it comes from our own page: the
  origin is compared with the host, port included. Programs that are no browser send neither header.
- Every response, errors and files included, carries the same headers: a content security policy without
  inline script or style and without any other host, no sniffing, no framing, no referrer for other sites.
  (Without any referrer browsers send a form with the origin `null`, which cannot be told from a foreign one.)

The cookie is not the token: it is a keyed hash of it, so that a leaked cookie does not sign in elsewhere.
"""

from __future__ import annotations

import hashlib
import hmac
from http.cookies import CookieError, SimpleCookie
from urllib.parse import urlsplit

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes.safety.access import Headers, HttpAccessPolicy, Refusal, TokenScheme
from hermes.web.responses import error_page

TOKEN_VARIABLE = "HERMES_WEB_TOKEN"
SESSION_COOKIE = "hermes_session"
SIGN_IN_PATH = "/sign-in"
_OPEN_PREFIXES = ("/static/", SIGN_IN_PATH)
"""Paths that need no token: the sign-in page and its style. They still refuse other sites."""
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_KEY = b"hermes web session"

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "font-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), microphone=(), geolocation=(), payment=()",
}
"""What every response carries."""


def session_value(token: str) -> str:
    """The cookie of a browser that has shown the token."""
    return hmac.new(_KEY, token.encode(), hashlib.sha256).hexdigest()


def _carries(headers: Headers, token: str) -> bool:
    scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
    if scheme.lower() == b"bearer":
        return hmac.compare_digest(bearer.strip(), token.encode())
    return hmac.compare_digest(_session_cookie(headers), session_value(token).encode())


def _session_cookie(headers: Headers) -> bytes:
    try:
        cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
    except CookieError:
        return b""
    morsel = cookies.get(SESSION_COOKIE)
    return morsel.value.encode("latin-1", "replace") if morsel else b""


TOKEN_SCHEME = TokenScheme(
    TOKEN_VARIABLE,
    "read every trajectory, rate, and start runs",
    "sign in at /sign-in, or send Authorization: Bearer",
    _carries,
)


class GuardedApp:
    """Applies the policy before anything of the body is read, and the headers to whatever is sent."""

    def __init__(self, app: ASGIApp, policy: HttpAccessPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                if "cache-control" not in headers:
                    headers["cache-control"] = "no-store"
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            await self._app(scope, receive, send_with_headers)
            return
        response = error_page(scope, refusal.status, refusal.detail, _advice(refusal))
        await response(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers = dict(scope["headers"])
        refusal = self._policy.refusal(headers, signed=scope["path"].startswith(_OPEN_PREFIXES))
        if refusal is not None or scope["method"] in _SAFE_METHODS:
            return refusal
        origin = headers.get(b"origin")
        if origin is not None and urlsplit(origin.decode("latin-1")).netloc != headers.get(
            b"host", b""
        ).decode("latin-1"):
            return Refusal(403, "requests from other sites are refused")
        return None


def _advice(refusal: Refusal) -> str:
    if refusal.status == 401:
        return "Open /sign-in and give the token that the server was started with."
    if "other sites" in refusal.detail:
        return "Type the address into the browser instead of following a link from another site."
    return f"Use http://127.0.0.1, or start the server with {TOKEN_VARIABLE} set."
