"""The engine over HTTP: a table of routes, who may ask, and what becomes of an error.

`routes` is the Tinker API; another face of the engine adds its own routes over the same `EngineServerState`.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeAlias

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from hermes.engine.server.responses import RequestError, refusal_of
from hermes.engine.server.state import EngineServerState
from hermes.engine.server.tinker.downloads import Downloads
from hermes.engine.server.tinker.imports import Imports
from hermes.engine.server.tinker.rest import Rest
from hermes.engine.server.tinker.sampling import SamplingRoutes
from hermes.engine.server.tinker.saving import Saving
from hermes.engine.server.tinker.service import ServiceRoutes
from hermes.engine.server.tinker.training import Training
from hermes.errors import HermesError
from hermes.safety.access import HttpAccessPolicy

Handler: TypeAlias = Callable[[Request], Awaitable[Response]]

_API = "/api/v1"
_FILES = f"{_API}/files/"
_logger = logging.getLogger(__name__)


def routes(state: EngineServerState) -> list[Route]:
    service, training, saving = ServiceRoutes(state), Training(state), Saving(state)
    sampling, rest, downloads = SamplingRoutes(state), Rest(state), Downloads(state)
    checkpoint = f"{_API}/training_runs/{{run}}/checkpoints/{{kind}}/{{name}}"
    table: list[tuple[str, str, Handler]] = [
        ("POST", f"{_API}/retrieve_future", service.retrieve_future),
        ("POST", f"{_API}/asample", sampling.asample),
        ("GET", "/health", service.healthz),
        ("GET", "/metrics", service.metrics),
        ("GET", f"{_API}/healthz", service.healthz),
        ("POST", f"{_API}/client/config", service.client_config),
        ("POST", f"{_API}/client/dynamic_config", service.dynamic_config),
        ("GET", f"{_API}/get_server_capabilities", service.capabilities),
        ("POST", f"{_API}/create_session", service.create_session),
        ("POST", f"{_API}/session_heartbeat", service.heartbeat),
        ("POST", f"{_API}/telemetry", service.telemetry),
        ("POST", f"{_API}/create_custom_loss", service.not_offered),
        ("POST", f"{_API}/create_model", training.create_model),
        ("POST", f"{_API}/get_info", training.get_info),
        ("POST", f"{_API}/forward_backward", training.forward_backward),
        ("POST", f"{_API}/optim_step", training.optim_step),
        ("POST", f"{_API}/save_weights", saving.save_weights),
        ("POST", f"{_API}/save_weights_for_sampler", saving.save_weights_for_sampler),
        ("POST", f"{_API}/save_weights_external", saving.save_weights_external),
        ("POST", f"{_API}/load_weights", training.load_weights),
        ("POST", f"{_API}/create_sampling_session", sampling.create_sampling_session),
        ("POST", f"{_API}/join_sampling_session", sampling.join_sampling_session),
        ("GET", f"{_API}/samplers/{{sampler}}", sampling.get_sampler),
        ("POST", f"{_API}/cancel_future", sampling.cancel_future),
        ("POST", f"{_API}/weights_info", rest.weights_info),
        ("POST", f"{_API}/copy_weights", rest.copy),
        ("GET", f"{_API}/checkpoints", rest.checkpoints),
        ("GET", f"{_API}/training_runs", rest.runs),
        ("GET", f"{_API}/training_runs/{{run}}", rest.run),
        ("GET", f"{_API}/training_runs/{{run}}/checkpoints", rest.run_checkpoints),
        ("DELETE", checkpoint, rest.delete),
        ("PUT", f"{checkpoint}/ttl", rest.set_ttl),
        ("POST", f"{checkpoint}/publish", rest.publish),
        ("DELETE", f"{checkpoint}/publish", rest.publish),
        ("GET", f"{checkpoint}/external_weights_urls", downloads.external_urls),
        ("GET", f"{checkpoint}/archive", downloads.archive),
        ("GET", f"{_FILES}{{run}}/{{kind}}/{{name}}/{{file}}", downloads.file),
        ("POST", f"{_API}/import_adapter", Imports(state).import_adapter),
        ("GET", f"{_API}/sessions", rest.sessions),
        ("POST", f"{_API}/sessions/search", rest.search_sessions),
        ("GET", f"{_API}/sessions/{{session}}", rest.session),
        ("POST", f"{_API}/sessions/{{session}}/finish", service.finish_session),
        ("PUT", f"{_API}/sessions/{{session}}/project", rest.assign_project),
        ("GET", f"{_API}/sessions/{{session}}/trace_export", rest.trace),
    ]
    return [Route(path, handler, methods=[method]) for method, path, handler in table]


def build_app(table: Iterable[Route], policy: HttpAccessPolicy) -> ASGIApp:
    app = Starlette(
        routes=list(table),
        exception_handlers={
            RequestError: _refused,
            HermesError: _failed,
            OSError: _disk_refused,
            HTTPException: _unrouted,
            Exception: _unforeseen,
        },
    )
    return _Guarded(app, policy)


class _Guarded:
    """Asks the policy before anything is read."""

    def __init__(self, app: ASGIApp, policy: HttpAccessPolicy) -> None:
        self._app = app
        self._policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            refusal = self._policy.refusal(dict(scope["headers"]), signed=scope["path"].startswith(_FILES))
            if refusal is not None:
                await JSONResponse({"detail": refusal.detail}, refusal.status)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestError)
    return error.answer()


def _failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HermesError)
    return refusal_of(error).answer()


def _disk_refused(request: Request, error: Exception) -> Response:
    """For the time being: the SDK asks again."""
    assert isinstance(error, OSError)
    _logger.error("%s %s: %s", request.method, request.url.path, error)
    return JSONResponse({"detail": f"the disk refused: {error.strerror or error}"}, 503)


def _unrouted(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse(
        {"detail": f"{error.detail}: {request.method} {request.url.path}"}, error.status_code, error.headers
    )


def _unforeseen(request: Request, error: Exception) -> Response:
    _logger.error("%s %s", request.method, request.url.path, exc_info=error)
    return JSONResponse({"detail": f"internal error: {type(error).__name__}"}, 500)
