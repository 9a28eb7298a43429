"""Who may use the web app, what each of them may do, and what its pages may do.

Promises:

- Every request has passed the policy of `hermes.serving` first: loopback names and this user only without a
  token; with one, the token as `Authorization: Bearer` or as the cookie that the sign-in page sets.
  Requests of other sites are refused.
- There are two tokens. HERMES_WEB_TOKEN may do everything, as the user who started the server may.
  HERMES_WEB_RATER_TOKEN may read and rate: whatever else changes something, or runs code, is refused.
- A cookie is a random number that this process knows. Signing out revokes it, as the end of the server does.
- Every response, errors and files included, carries the same headers: a content security policy without
  inline script or style and without any other host, no sniffing, no framing, no referrer for other sites.
  (Without any referrer browsers send a form with the origin `null`, which cannot be told from a foreign one.)
"""

from __future__ import annotations

import hmac
import re
import secrets
import threading
import time
from enum import StrEnum
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import MutableHeaders
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes.safety.access import Headers, Refusal, TokenScheme, check_token
from hermes.web.responses import ROLE, error_page

TOKEN_VARIABLE = "HERMES_WEB_TOKEN"
RATER_TOKEN_VARIABLE = "HERMES_WEB_RATER_TOKEN"
SESSION_COOKIE = "hermes_session"
SESSION_S = 7 * 86_400
SIGN_IN_PATH, SIGN_OUT_PATH = "/sign-in", "/sign-out"
OPEN_PATHS = ("/static/", SIGN_IN_PATH)
"""Paths that need no token: the sign-in page and its style. They still refuse other sites."""
_SAFE_METHODS = frozenset({"GET", "HEAD"})
_RATERS_CHANGE = re.compile(r"/rate(/undo|/rater)?|/api/ratings(/.+)?|/api/queues/.+|" + SIGN_OUT_PATH)
"""Paths that a rater may send a form to."""
_RUNS_CODE = ("/runs/new",)
"""Pages that import an environment to show it."""
_MAX_SESSIONS = 1000

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
"""The headers of every response."""


class WebRole(StrEnum):
    RUN = "run"
    """May do everything."""
    RATE = "rate"
    """May read everything and rate."""

    def refusal(self, method: str, path: str) -> Refusal | None:
        changes = method not in _SAFE_METHODS and not _RATERS_CHANGE.fullmatch(path)
        if self is WebRole.RATE and (changes or path.startswith(_RUNS_CODE)):
            return Refusal(403, "this token is for reading and rating; it changes and starts nothing else")
        return None


class WebSessions:
    """The tokens of a server, and the browsers that have shown one. Safe to use from any thread."""

    def __init__(self, token: str | None = None, rater_token: str | None = None) -> None:
        """UsageError: a token that is too short, or the same token twice."""
        self._tokens = {WebRole.RUN: token, WebRole.RATE: rater_token}
        check_token(TOKEN_VARIABLE, token)
        check_token(RATER_TOKEN_VARIABLE, rater_token, differs_from=token)
        self._lock = threading.Lock()
        self._sessions: dict[str, tuple[WebRole, float]] = {}

    @property
    def any_token(self) -> str | None:
        return self._tokens[WebRole.RUN] or self._tokens[WebRole.RATE]

    def role(self, headers: Headers) -> WebRole | None:
        """The role of the sender of a request; None: it has shown no token of a server that has one."""
        if self.any_token is None:
            return WebRole.RUN
        scheme, _, bearer = headers.get(b"authorization", b"").partition(b" ")
        if scheme.lower() == b"bearer":
            return self._role_of(bearer.strip())
        with self._lock:
            role, ends_at_s = self._sessions.get(_session_cookie(headers), (None, 0.0))
        return role if time.monotonic() < ends_at_s else None

    def sign_in(self, token: str) -> str | None:
        """The cookie of a new session; None: that is no token of this server."""
        role = self._role_of(token.encode())
        if role is None:
            return None
        cookie = secrets.token_urlsafe(32)
        with self._lock:
            self._sessions[cookie] = (role, time.monotonic() + SESSION_S)
            while len(self._sessions) > _MAX_SESSIONS:
                self._sessions.pop(next(iter(self._sessions)))
        return cookie

    def sign_out(self, headers: Headers) -> None:
        with self._lock:
            self._sessions.pop(_session_cookie(headers), None)

    def scheme(self) -> TokenScheme:
        return TokenScheme(
            TOKEN_VARIABLE,
            "read every trajectory, rate, and start runs",
            "sign in at /sign-in, or send Authorization: Bearer",
            lambda headers, _: self.role(headers) is not None,
        )

    def _role_of(self, shown: bytes) -> WebRole | None:
        for role, token in self._tokens.items():
            if token is not None and hmac.compare_digest(shown, token.encode()):
                return role
        return None


def _session_cookie(headers: Headers) -> str:
    try:
        cookies = SimpleCookie(headers.get(b"cookie", b"").decode("latin-1"))
    except CookieError:
        return ""
    morsel = cookies.get(SESSION_COOKIE)
    return morsel.value if morsel else ""


class RoleGuard:
    """Refuses what the sender's role does not allow, and adds the headers to whatever is sent."""

    def __init__(self, app: ASGIApp, sessions: WebSessions) -> None:
        self._app = app
        self._sessions = sessions

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                _add_headers(MutableHeaders(scope=message))
            await send(message)

        role = self._sessions.role(dict(scope["headers"]))
        if self._sessions.any_token is not None and role is not None:
            scope[ROLE] = role.value
        # Without a role only the open pages get here.
        refusal = role.refusal(scope["method"], scope["path"]) if role is not None else None
        if refusal is None:
            await self._app(scope, receive, send_with_headers)
        else:
            await refuse(scope, refusal)(scope, receive, send)


def refuse(scope: Scope, refusal: Refusal) -> Response:
    """A page that says why."""
    response = error_page(scope, refusal.status, refusal.detail, _advice(refusal))
    _add_headers(response.headers)
    return response


def _add_headers(headers: MutableHeaders) -> None:
    headers.update(HEADERS)
    headers.setdefault("cache-control", "no-store")


def _advice(refusal: Refusal) -> str:
    if refusal.status == 429:
        return "Who has signed in already is not concerned."
    if refusal.status == 401:
        return "Open /sign-in and give the token that the server was started with."
    if "other sites" in refusal.detail:
        return "Type the address into the browser instead of following a link from another site."
    if "this token" in refusal.detail:
        return f"Sign out, and sign in with the token of {TOKEN_VARIABLE}."
    if "the user who started it" in refusal.detail:
        return "Ask that user for an address and a token."
    return f"Use http://127.0.0.1, or start the server with {TOKEN_VARIABLE} set."
