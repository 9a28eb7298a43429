"""The trajectory API over HTTP: one table of operations, from which routes and documentation are made.

Paths, methods, status codes and bodies are those that Atropos's clients expect. Access is checked before a
body is read. `protocol.HttpConnection` is needed underneath: it reports whether a batch arrived.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hermes.core.json import JSONObject
from hermes.errors import StoreError
from hermes.rollouts.compression import BadGzip
from hermes.rollouts.core.metrics import Metrics
from hermes.rollouts.http import bodies
from hermes.rollouts.http.bodies import Model
from hermes.rollouts.http.responses import BatchResponse, CompressedResponse, json_response
from hermes.rollouts.intake import RejectedPostError
from hermes.rollouts.parsing.parse import BodyError
from hermes.rollouts.parsing.worker import Parser, WorkerLost
from hermes.rollouts.schema import (
    MAX_LEASE_S,
    MIN_LEASE_S,
    EnvReference,
    EnvRegistration,
    LeaseReference,
    LeaseRenewal,
    Registration,
    ScoredData,
)
from hermes.rollouts.service import BatchDelivery, TrajectoryService
from hermes.safety.access import Refusal, is_browser
from hermes.serving.openapi import Operation, document, operation, operations_of, page

TITLE = "Hermes trajectory API"
_MAX_KEY_CHARS = 200
_MAX_LEASE_ID = 2**63
_KEY = (("Idempotency-Key", "a second post with the same key is acknowledged and not stored again"),)
_LEASE = (
    (
        "lease_s",
        {"type": "number", "minimum": MIN_LEASE_S, "maximum": MAX_LEASE_S},
        "lease the batch for this long, until it is acknowledged",
    ),
    (
        "lease_id",
        {"type": "integer", "minimum": 1, "maximum": _MAX_LEASE_ID},
        "deliver this outstanding batch again",
    ),
)
_RETRY_AFTER_S = 5
_logger = logging.getLogger(__name__)

Endpoint = Callable[[Request], Awaitable[Response]]


def build_app(service: TrajectoryService, parser: Parser) -> ASGIApp:
    """The ASGI application; a listener's policy says who may use it."""
    handlers = Handlers(service, parser)
    routes = [_route(operation, handlers) for operation in OPERATIONS]
    app = Starlette(routes=routes, exception_handlers={HTTPException: _http_error})
    app.router.redirect_slashes = False
    endpoints = {
        (operation.method, operation.path): partial(operation.handler, handlers) for operation in OPERATIONS
    }
    return _Frontend(app, endpoints, service.metrics)


class Handlers:
    """One method for each operation. Routes are matched in their order: what is called most comes first."""

    def __init__(self, service: TrajectoryService, parser: Parser) -> None:
        self._service = service
        self._parser = parser

    @operation("POST", "/scored_data", ScoredData, headers=_KEY, statuses=(404, 503))
    async def scored_data(self, request: Request) -> Response:
        """One group."""
        return await self._post(request, many=False)

    @operation("POST", "/scored_data_list", ScoredData, many=True, headers=_KEY, statuses=(404, 503))
    async def scored_data_list(self, request: Request) -> Response:
        """Several groups, all or none."""
        return await self._post(request, many=True)

    @operation("GET", "/status-env", EnvReference, statuses=(404,))
    async def status_env(self, request: Request) -> Response:
        """The status that an environment polls; its id is a JSON body."""
        return json_response(self._service.env_status((await self._model(request, EnvReference)).env_id))

    @operation("GET", "/")
    async def root(self, request: Request) -> Response:
        """Name of the API."""
        return json_response({"message": "AtroposLib API"})

    @operation("POST", "/register", Registration)
    async def register(self, request: Request) -> Response:
        """A trainer registers the run."""
        return json_response(await self._service.register(await self._model(request, Registration)))

    @operation("POST", "/register-env", EnvRegistration)
    async def register_env(self, request: Request) -> Response:
        """An environment joins the run."""
        return json_response(await self._service.register_env(await self._model(request, EnvRegistration)))

    @operation("POST", "/disconnect-env", EnvReference)
    async def disconnect_env(self, request: Request) -> Response:
        """An environment leaves the run."""
        reference = await self._model(request, EnvReference)
        return json_response(await self._service.disconnect_env(reference.env_id))

    @operation("GET", "/wandb_info")
    async def wandb_info(self, request: Request) -> Response:
        """Group and project of the run."""
        run = self._service.state.registration
        return json_response(
            {"group": run.wandb_group if run else None, "project": run.wandb_project if run else None}
        )

    @operation("GET", "/info")
    async def info(self, request: Request) -> Response:
        """Batch size and longest sequence of the run."""
        run = self._service.state.registration
        return json_response(
            {"batch_size": run.batch_size if run else -1, "max_token_len": run.max_token_len if run else -1}
        )

    @operation("GET", "/batch", query=_LEASE, statuses=(404,))
    async def batch(self, request: Request) -> Response:
        """The next batch, or null and the reason why there is none."""
        lease_s = _query_number(request, "lease_s", float, MIN_LEASE_S, MAX_LEASE_S)
        lease_id = _query_number(request, "lease_id", int, 1, _MAX_LEASE_ID)
        batch = (
            await self._service.next_batch(lease_s)
            if lease_id is None
            else await self._service.redeliver(int(lease_id), lease_s)
        )
        if not isinstance(batch, BatchDelivery):
            return json_response(batch)
        lease = batch.lease
        return BatchResponse(batch, lambda arrived: self._service.settle_delivery(lease, arrived=arrived))

    @operation("POST", "/batch/ack", LeaseReference, statuses=(404,))
    async def acknowledge(self, request: Request) -> Response:
        """Acknowledges a leased batch."""
        reference = await self._model(request, LeaseReference)
        return json_response(await self._service.acknowledge(reference.lease_id))

    @operation("POST", "/batch/renew", LeaseRenewal)
    async def renew(self, request: Request) -> Response:
        """Renews the leases of batches in use."""
        renewal = await self._model(request, LeaseRenewal)
        return json_response(await self._service.renew(renewal.lease_ids, renewal.lease_s))

    @operation("GET", "/latest_example")
    async def latest_example(self, request: Request) -> Response:
        """The group that joined the queue last."""
        return CompressedResponse(await self._service.latest_example(), media_type="application/json")

    @operation("GET", "/status")
    async def status(self, request: Request) -> Response:
        """Step, queue, rates, leases and environments."""
        return json_response(status(self._service, time.time()))

    @operation("GET", "/reset_data", content_type="text/plain")
    @operation(
        "POST",
        "/reset_data",
        content_type="text/plain",
        summary="The same, as a request that may change something.",
    )
    async def reset_data(self, request: Request) -> Response:
        """Deletes the run and everything queued."""
        await self._service.reset()
        return PlainTextResponse("Reset successful")

    @operation("GET", "/metrics", content_type="text/plain")
    async def metrics(self, request: Request) -> Response:
        """For Prometheus."""
        text = self._service.metrics.render(gauges(self._service, time.time()))
        return CompressedResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @operation("GET", "/openapi.json", include_in_schema=False)
    async def openapi(self, request: Request) -> Response:
        """This document."""
        return json_response(document(TITLE, OPERATIONS))

    @operation("GET", "/docs", include_in_schema=False)
    async def docs(self, request: Request) -> Response:
        """This document as a page."""
        return CompressedResponse(page(TITLE, OPERATIONS), media_type="text/html")

    async def _post(self, request: Request, *, many: bool) -> Response:
        key = request.headers.get("idempotency-key") or None
        if key is not None and len(key) > _MAX_KEY_CHARS:
            message = f"at most {_MAX_KEY_CHARS} characters"
            loc = ["header", "idempotency-key"]
            raise BodyError([{"type": "too_long", "loc": loc, "msg": message, "input": None}])
        body = await bodies.read_json(request, self._service.limits.max_body_bytes)
        groups = await self._parser.parse(body, many=many)
        return json_response(await self._service.intake.post(groups, many=many, key=key))

    async def _model(self, request: Request, model: type[Model]) -> Model:
        return await bodies.read_model(request, model, self._service.limits.max_body_bytes)


OPERATIONS = operations_of(Handlers)
_CHANGING = frozenset({"/reset_data", "/batch"})
"""GET requests that change the run, because Atropos's clients send them so."""
_PATHS = frozenset(operation.path for operation in OPERATIONS)


def refuse(scope: Scope, refusal: Refusal) -> Response:
    challenge = {"www-authenticate": 'Basic realm="hermes"'} if refusal.status == 401 else None
    return json_response({"detail": refusal.detail}, refusal.status, challenge)


class _Frontend:
    """Refuses changes by a browser's GET, ignores a trailing slash, and counts requests by path and status.

    A request that matches an operation goes to its endpoint. Starlette's middleware and routing see only the
    others: they cost as much CPU time as the status that every environment polls.
    """

    def __init__(
        self,
        app: ASGIApp,
        endpoints: Mapping[tuple[str, str], Endpoint],
        metrics: Metrics,
    ) -> None:
        self._app = app
        self._endpoints = endpoints
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = scope["path"] = scope["path"].rstrip("/") or "/"

        async def count_and_send(message: Message) -> None:
            if message["type"] == "http.response.start":
                label = path if path in _PATHS else "other"
                self._metrics.count("requests_total", path=label, status=message["status"])
            await send(message)

        if scope["method"] == "GET" and path in _CHANGING and is_browser(dict(scope["headers"])):
            refusal = Refusal(403, f"GET {path} changes the run: send it from a program, not from a browser")
            await refuse(scope, refusal)(scope, receive, count_and_send)
        elif (endpoint := self._endpoints.get((scope["method"], path))) is not None:
            await _respond(endpoint, scope, receive, count_and_send)
        else:
            await self._app(scope, receive, count_and_send)


async def _respond(endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
    request = Request(scope, receive, send)
    try:
        response = await endpoint(request)
    except BodyError as error:
        response = json_response({"detail": error.details}, 422)
    except RejectedPostError as error:
        headers = {"retry-after": str(error.retry_after_s)} if error.retry_after_s else None
        response = json_response({"detail": error.detail}, error.status, headers)
    except (StoreError, WorkerLost) as error:
        _logger.error("%s %s: %s", request.method, request.url.path, error)
        response = json_response({"detail": str(error)}, 503, {"retry-after": str(_RETRY_AFTER_S)})
    except BadGzip:
        response = PlainTextResponse("Invalid gzip payload", 400)
    except HTTPException as error:
        response = await _http_error(request, error)
    except ClientDisconnect:
        return  # the client closed the connection while its request was being read
    await response(scope, receive, send)


def _route(operation: Operation, handlers: Handlers) -> Route:
    route = Route(operation.path, partial(operation.handler, handlers), methods=[operation.method])
    route.methods = {operation.method}  # without the HEAD that Starlette adds: it would take a batch
    return route


def _query_number(
    request: Request, name: str, kind: type[int] | type[float], least: float, most: float
) -> float | None:
    text = request.query_params.get(name)
    if text is None:
        return None
    try:
        number = kind(text)
    except ValueError:
        number = least - 1
    if not least <= number <= most:
        message = f"a number from {least:g} to {most:g}"
        raise BodyError([{"type": "number", "loc": ["query", name], "msg": message, "input": text[:80]}])
    return number


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return json_response({"detail": error.detail}, error.status_code, error.headers)


def status(service: TrajectoryService, now_s: float) -> JSONObject:
    """`current_step` and `queue_size` for Atropos's clients; the rest for people."""
    state, metrics = service.state, service.metrics
    oldest = state.queue.oldest()
    lost = [lease for lease in state.leases.values() if lease.waiting]
    waiting_s = service.trainer_wait.seconds(now_s)
    return {
        "current_step": state.step,
        "queue_size": state.queue.groups,
        "registered": state.registration is not None,
        "started": state.started,
        "queue": {
            "groups": state.queue.groups,
            "sequences": state.queue.sequences,
            "bytes": state.queue.bytes,
            "oldest_age_s": round(max(0.0, now_s - oldest.received_s), 3) if oldest else None,
            "set_aside_groups": state.set_aside(),
            "buffered_groups": sum(len(buffer.parts) for buffer in state.buffers.values()),
        },
        "leases": {"outstanding": len(state.leases) - len(lost), "lost": len(lost)},
        "trainer": {"waiting_s": None if waiting_s is None else round(waiting_s, 3)},
        "rates_per_s": {
            "groups": round(metrics.groups.per_second(now_s), 3),
            "sequences": round(metrics.sequences.per_second(now_s), 3),
            "batches": round(metrics.batches.per_second(now_s), 3),
        },
        "envs": [
            {
                "env_id": env.id,
                "wandb_name": env.wandb_name,
                "connected": env.connected,
                "last_seen_age_s": round(max(0.0, now_s - env.last_seen_s), 3),
            }
            for env in state.envs.values()
        ],
    }


def gauges(service: TrajectoryService, now_s: float) -> dict[str, float]:
    state = service.state
    queue = status(service, now_s)["queue"]
    return {
        "step": float(state.step),
        "queue_groups": float(state.queue.groups),
        "queue_sequences": float(state.queue.sequences),
        "queue_bytes": float(state.queue.bytes),
        "queue_oldest_age_seconds": float(queue["oldest_age_s"] or 0.0),
        "set_aside_groups": float(queue["set_aside_groups"]),
        "buffered_groups": float(queue["buffered_groups"]),
        "kept_groups": float(state.kept_groups),
        "kept_bytes": float(state.kept_bytes),
        "leases_outstanding": float(sum(not lease.waiting for lease in state.leases.values())),
        "leases_lost": float(sum(lease.waiting for lease in state.leases.values())),
        "envs_connected": float(sum(env.connected for env in state.envs.values())),
        **service.journal.figures(),
    }
