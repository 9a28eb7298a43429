"""The ASGI application of the engine: routes, and errors as responses.

An API is a table of operations; `openai.routes` and `tinker.routes` each have one. `build_app` serves any of
them, with their description at /openapi.json and /docs.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from hermes.engine.server.responses import RequestError, disk_error_text, request_error
from hermes.errors import HermesError
from hermes.serving.openapi import Operation, document, page

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]
TITLE = "Hermes engine"

SIGNED_FILES = "/api/v1/files/"
"""URLs below this path carry a signature of their own instead of a token; see `tinker.downloads`."""
_logger = logging.getLogger(__name__)


def build_app(operations: Sequence[Operation]) -> ASGIApp:
    """The first operation that matches a request answers it; a listener's policy says who may ask."""

    async def openapi(request: Request) -> Response:
        return JSONResponse(document(TITLE, operations))

    async def docs(request: Request) -> Response:
        return Response(page(TITLE, operations), media_type="text/html")

    routes = [
        Route("/openapi.json", openapi, methods=["GET"]),
        Route("/docs", docs, methods=["GET"]),
        *(Route(entry.path, entry.handler, methods=[entry.method]) for entry in operations),
    ]
    return Starlette(
        routes=routes,
        exception_handlers={
            RequestError: _on_request_error,
            HermesError: _on_hermes_error,
            OSError: _on_disk_error,
            HTTPException: _on_no_route,
            Exception: _on_internal_error,
        },
    )


def _on_request_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error.response()


def _on_hermes_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HermesError)
    return request_error(error).response()


def _on_disk_error(request: Request, error: Exception) -> Response:
    """503, which the SDK retries."""
    assert isinstance(error, OSError)
    _logger.error("%s %s: %s", request.method, request.url.path, error)
    return JSONResponse({"detail": disk_error_text(error)}, 503)


def _on_no_route(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(
        {"detail": f"{error.detail}: {request.method} {request.url.path}"}, error.status_code, error.headers
    )


def _on_internal_error(request: Request, error: Exception) -> Response:
    _logger.error("%s %s", request.method, request.url.path, exc_info=error)
    return JSONResponse({"detail": f"internal error: {type(error).__name__}"}, 500)
