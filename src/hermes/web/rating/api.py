"""The rating desk for programs: the routes of `hermes.ratings.http` below `/api`, behind our own checks.

The desk is opened by the first request: pages that only read need no writer.
"""

from __future__ import annotations

import threading

from starlette.concurrency import run_in_threadpool
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes.config.paths import db_path
from hermes.ratings import RatingDesk
from hermes.ratings.http import rating_router
from hermes.web.context import WebContext

PREFIX = "/api"


class RatingApi:
    """An application to mount at PREFIX. Its answers, errors too, are JSON."""

    def __init__(self, context: WebContext) -> None:
        self._context = context
        self._lock = threading.Lock()
        self._router: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        router = self._router
        if router is None:
            router = await run_in_threadpool(self._open)
        await router(scope, receive, send)

    def _open(self) -> ASGIApp:
        with self._lock:
            if self._router is None:
                path = db_path(self._context.home)
                self._router = rating_router(RatingDesk(path, self._context.writer()), path)
            return self._router
