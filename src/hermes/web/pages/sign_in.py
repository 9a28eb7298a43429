"""Signing in with the server's token, where it has one."""

from __future__ import annotations

import hmac

from starlette.responses import RedirectResponse, Response

from hermes.safety.access import HttpAccessPolicy
from hermes.web.requests import WebHandler, WebRequest
from hermes.web.security import SESSION_COOKIE, session_value

_SESSION_S = 30 * 86_400


def make_handler(policy: HttpAccessPolicy) -> WebHandler:
    def sign_in(request: WebRequest) -> Response:
        if policy.token is None:
            return RedirectResponse("/", 303)
        if request.scope["method"] == "GET":
            return request.page("sign_in.html", {"problem": ""})
        if not hmac.compare_digest(request.field("token").encode(), policy.token.encode()):
            return request.page("sign_in.html", {"problem": "That is not the token of this server."}, 401)
        response = RedirectResponse("/", 303)
        response.set_cookie(
            SESSION_COOKIE,
            session_value(policy.token),
            max_age=_SESSION_S,
            httponly=True,
            samesite="strict",
        )
        return response

    return sign_in
