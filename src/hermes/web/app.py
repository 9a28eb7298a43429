"""The ASGI application: routes, files, errors as pages."""

from __future__ import annotations

import logging
import threading
from functools import partial
from pathlib import Path

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, RedirectResponse, Response
from starlette.routing import BaseRoute, Mount, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes.config.paths import db_path
from hermes.errors import HermesError, HostError, UsageError
from hermes.ratings import RatingDesk
from hermes.ratings.http import rating_router
from hermes.web.context import WebContext
from hermes.web.pages import (
    alerts,
    batches,
    compare,
    datasets,
    environments,
    home,
    jobs,
    policies,
    rate,
    runs,
    sign_in,
    skills,
    start_run,
    trajectories,
    transcript,
)
from hermes.web.requests import WebHandler, endpoint
from hermes.web.responses import STATIC, PageError, error_page
from hermes.web.security import SIGN_IN_PATH, SIGN_OUT_PATH, RoleGuard, WebSessions

_TYPES = {".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_FOR_EVER = "public, max-age=31536000, immutable"
_logger = logging.getLogger(__name__)

PAGES: tuple[tuple[str, str, WebHandler], ...] = (
    ("GET", "/", home.show),
    *trajectories.ROUTES,
    *transcript.ROUTES,
    *compare.ROUTES,
    *rate.ROUTES,
    *start_run.ROUTES,
    *alerts.ROUTES,
    *runs.ROUTES,
    runs.RUN_ROUTE,
    *jobs.ROUTES,
    *batches.ROUTES,
    *environments.ROUTES,
    *datasets.ROUTES,
    *policies.ROUTES,
    *skills.ROUTES,
)


def build_app(context: WebContext, sessions: WebSessions) -> ASGIApp:
    routes: list[BaseRoute] = [
        Route(path, endpoint(handler), methods=[method]) for method, path, handler in PAGES
    ]
    routes += [
        Route("/static/{name:path}", _static, methods=["GET"]),
        Route(SIGN_IN_PATH, endpoint(partial(sign_in.sign_in, sessions)), methods=["GET", "POST"]),
        Route(SIGN_OUT_PATH, endpoint(partial(sign_in.sign_out, sessions)), methods=["POST"]),
        Route("/favicon.ico", _favicon, methods=["GET"]),
        Mount("/api", app=RatingApi(context)),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            PageError: _on_page_error,
            HermesError: _on_hermes_error,
            HTTPException: _on_http_error,
            OSError: _on_disk_error,
            Exception: _on_bug,
        },
    )
    app.state.context = context
    return RoleGuard(GZipMiddleware(app, minimum_size=2000, compresslevel=4), sessions)


async def _static(request: Request) -> Response:
    """Only files that are listed in the folder: a name is looked up, never joined to a path."""
    name = request.path_params["name"]
    path = _static_files().get(name)
    if path is None:
        raise PageError(404, f"there is no file '{name[:80]}'")
    return FileResponse(
        path, media_type=_TYPES.get(path.suffix, "text/plain"), headers={"cache-control": _FOR_EVER}
    )


def _static_files() -> dict[str, Path]:
    return {path.relative_to(STATIC).as_posix(): path for path in STATIC.rglob("*") if path.is_file()}


async def _favicon(request: Request) -> Response:
    return RedirectResponse("/static/icon.svg", 301)


async def _on_page_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, PageError)
    return error_page(request.scope, error.status, error.message, error.hint)


async def _on_hermes_error(request: Request, error: Exception) -> Response:
    """A request that is wrong is 4xx; a machine that cannot go on is 503."""
    assert isinstance(error, HermesError)
    status = 404 if isinstance(error, UsageError) and request.method == "GET" else 400
    if isinstance(error, HostError):
        status = 503
    return error_page(request.scope, status, error.message, error.hint)


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    sentence = {
        404: f"there is no page {request.url.path[:200]}",
        405: f"{request.method[:20]} is not possible here",
    }.get(error.status_code, str(error.detail))
    return error_page(request.scope, error.status_code, sentence, "The pages are in the navigation.")


async def _on_disk_error(request: Request, error: Exception) -> Response:
    _logger.error("%s %s: %s", request.method, request.url.path, error)
    return error_page(request.scope, 503, f"the disk cannot be read: {error}", "Run 'hermes doctor'.")


async def _on_bug(request: Request, error: Exception) -> Response:
    _logger.error("%s %s", request.method, request.url.path, exc_info=error)
    return error_page(
        request.scope,
        500,
        f"this page failed: {type(error).__name__}",
        "The terminal of 'hermes web' has the details.",
    )


class RatingApi:
    """The rating desk for programs: the routes of `hermes.ratings.http`, behind our own checks.

    Its answers, errors too, are JSON. The desk is opened by the first request: pages that only read need no
    writer.
    """

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
