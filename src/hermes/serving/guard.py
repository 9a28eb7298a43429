"""Applies a listener's policy to what is served on it: to every connection, and then to every request."""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable

from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes.safety.access import Headers, HttpAccessPolicy, Refusal
from hermes.serving.peers import are_told_apart
from hermes.serving.protocol import LimitedHttpProtocol

_logger = logging.getLogger(__name__)
_MAX_ADDRESSES = 10_000
_TOO_MANY = Refusal(429, "too many wrong tokens came from this address; wait a minute")


def _refuse_as_json(scope: Scope, refusal: Refusal) -> Response:
    return JSONResponse({"detail": refusal.detail}, refusal.status)


class GuessLimit:
    """How many wrong tokens an address may show: as many as a minute's at once, then one after the other."""

    def __init__(self, a_minute: int) -> None:
        self._a_minute = a_minute
        self._spent: dict[str, tuple[float, float]] = {}
        """By address: wrong tokens that still count, and when that was so."""

    def is_spent(self, address: str) -> bool:
        return self._now_spent(address) >= self._a_minute

    def count(self, address: str) -> None:
        if len(self._spent) >= _MAX_ADDRESSES:
            self._spent.clear()
        self._spent[address] = (self._now_spent(address) + 1, time.monotonic())

    def _now_spent(self, address: str) -> float:
        spent, at_s = self._spent.get(address, (0.0, 0.0))
        return max(0.0, spent - (time.monotonic() - at_s) * self._a_minute / 60)


class GuardedApp:
    """Refuses a request before anything of its body is read."""

    def __init__(
        self,
        app: ASGIApp,
        policy: HttpAccessPolicy,
        open_paths: tuple[str, ...] = (),
        refuse: Callable[[Scope, Refusal], Response] | None = None,
        guesses_a_minute: int | None = None,
    ) -> None:
        self._app = app
        self._open_paths = open_paths
        self._guesses = GuessLimit(guesses_a_minute) if guesses_a_minute and policy.token else None
        self.policy = policy
        self.refuse = refuse or _refuse_as_json

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = dict(scope["headers"])
        is_open = scope["path"].startswith(self._open_paths)
        shows_token = b"authorization" in headers or (is_open and scope["method"] == "POST")
        if self._guesses is None or not shows_token:
            await self._answer(scope, receive, send, headers, is_open)
            return
        guesses, address = self._guesses, (scope["client"] or ("",))[0]
        if guesses.is_spent(address):
            await self.refuse(scope, _TOO_MANY)(scope, receive, send)
            return

        async def count_and_send(message: Message) -> None:
            if message["type"] == "http.response.start" and message["status"] == 401:
                guesses.count(address)
            await send(message)

        await self._answer(scope, receive, count_and_send, headers, is_open)

    async def _answer(
        self, scope: Scope, receive: Receive, send: Send, headers: Headers, is_open: bool
    ) -> None:
        refusal = self.policy.refusal(headers, signed=is_open)
        respond = self._app if refusal is None else self.refuse(scope, refusal)
        await respond(scope, receive, send)


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
