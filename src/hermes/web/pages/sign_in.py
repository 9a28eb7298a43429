"""Signing in with a token of the server, where it has one, and signing out."""

from __future__ import annotations

from starlette.responses import RedirectResponse, Response

from hermes.web.requests import WebRequest
from hermes.web.security import SESSION_COOKIE, SESSION_S, SIGN_IN_PATH, WebSessions


def sign_in(sessions: WebSessions, request: WebRequest) -> Response:
    if sessions.any_token is None:
        return RedirectResponse("/", 303)
    if request.scope["method"] == "GET":
        return request.page("sign_in.html", {"problem": ""})
    cookie = sessions.sign_in(request.field("token"))
    if cookie is None:
        return request.page("sign_in.html", {"problem": "That is not a token of this server."}, 401)
    response = RedirectResponse("/", 303)
    response.set_cookie(SESSION_COOKIE, cookie, max_age=SESSION_S, httponly=True, samesite="strict")
    return response


def sign_out(sessions: WebSessions, request: WebRequest) -> Response:
    """Revokes the cookie, so that a copy of it signs nobody in."""
    sessions.sign_out(dict(request.scope["headers"]))
    response = RedirectResponse(SIGN_IN_PATH, 303)
    response.delete_cookie(SESSION_COOKIE, httponly=True, samesite="strict")
    return response
