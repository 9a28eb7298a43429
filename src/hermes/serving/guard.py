"""Applies a listener's policy to what is served on it: to every connection, and then to every request."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes.safety.access import HttpAccessPolicy, Refusal
from hermes.serving.peers import are_told_apart
from hermes.serving.protocol import LimitedHttpProtocol

_logger = logging.getLogger(__name__)


def _refuse_as_json(scope: Scope, refusal: Refusal) -> Response:
    return JSONResponse({"detail": refusal.detail}, refusal.status)


class GuardedApp:
    """Refuses a request before anything of its body is read."""

    def __init__(
        self,
        app: ASGIApp,
        policy: HttpAccessPolicy,
        open_paths: tuple[str, ...] = (),
        refuse: Callable[[Scope, Refusal], Response] | None = None,
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self.policy = policy
        self.refuse = refuse or _refuse_as_json

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            signed = scope["path"].startswith(self._open_paths)
            refusal = self.policy.refusal(dict(scope["headers"]), signed=signed)
            if refusal is not None:
                await self.refuse(scope, refusal)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def guarded_protocol(
    base: type[LimitedHttpProtocol] | None, app: GuardedApp, listening: socket.socket
) -> type[LimitedHttpProtocol]:
    """The protocol class, which refuses the connections of other users where the policy wants it.

    Where the system does not tell users apart all are answered, and a warning says so.
    """
    base = base or LimitedHttpProtocol
    if not app.policy.only_user:
        return base
    scheme = app.policy.scheme
    if not are_told_apart(listening):
        _logger.warning(
            "this system does not tell whose a connection is, so every user of this machine can %s%s",
            scheme.at_stake,
            f"; set {scheme.variable}" if scheme.variable else "",
        )
        return base
    way_in = f"; for others, start it with a token in {scheme.variable}" if scheme.variable else ""
    refusal = Refusal(403, f"this server answers only the user who started it{way_in}")
    response = app.refuse({"type": "http", "method": "GET", "path": "/", "headers": []}, refusal)
    return type(f"Own{base.__name__}", (base,), {"stranger_response": response})
