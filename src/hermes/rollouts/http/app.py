"""The trajectory API over HTTP: paths, methods and answers as other people's clients expect them."""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from hermes.errors import StoreError
from hermes.rollouts.http import openapi
from hermes.rollouts.http.asgi import (
    ClientGone,
    HttpError,
    HttpRequest,
    HttpResponse,
    Receive,
    Scope,
    Send,
    failed,
    invalid,
    json_answer,
    send_answer,
)
from hermes.rollouts.http.delivery import send_batch
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
)
from hermes.rollouts.service import BatchDelivery, TrajectoryService
from hermes.rollouts.status import gauges, status
from hermes.safety.access import HttpAccessPolicy

Handler: TypeAlias = Callable[[HttpRequest], Awaitable[HttpResponse | BatchDelivery]]

_MAX_KEY_CHARS = 200
_RETRY_AFTER_S = 5
_logger = logging.getLogger(__name__)


class App:
    """An ASGI application. It needs `protocol.Connection` underneath to know what arrived."""

    def __init__(self, service: TrajectoryService, policy: HttpAccessPolicy, parser: Parser) -> None:
        self._service = service
        self._policy = policy
        self._parser = parser
        self._routes: dict[str, dict[str, Handler]] = {
            "/": {"GET": self._root},
            "/register": {"POST": self._register},
            "/register-env": {"POST": self._register_env},
            "/disconnect-env": {"POST": self._disconnect_env},
            "/wandb_info": {"GET": self._wandb_info},
            "/info": {"GET": self._info},
            "/batch": {"GET": self._batch},
            "/batch/ack": {"POST": self._acknowledge},
            "/batch/renew": {"POST": self._renew},
            "/latest_example": {"GET": self._latest_example},
            "/scored_data": {"POST": self._scored_data},
            "/scored_data_list": {"POST": self._scored_data_list},
            "/status": {"GET": self._status},
            "/status-env": {"GET": self._status_env},
            "/reset_data": {"GET": self._reset_data},
            "/metrics": {"GET": self._metrics},
            "/openapi.json": {"GET": self._openapi},
            "/docs": {"GET": self._docs},
        }

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        request = HttpRequest(scope, receive, self._service.limits.max_body_bytes)
        path = scope["path"].rstrip("/") or "/"
        try:
            answer = await self._handle(request, path)
        except ClientGone:
            return
        except HttpError as failure:
            answer = failure.answer
        known = path if path in self._routes else "other"
        code = 200 if isinstance(answer, BatchDelivery) else answer.status
        self._service.metrics.count("requests_total", path=known, status=code)
        if isinstance(answer, HttpResponse):
            await send_answer(send, answer, gzip=request.accepts_gzip)
            return
        lease = answer.lease
        await send_batch(request, send, answer, lambda arrived: self._service.sent(lease, arrived=arrived))

    async def _handle(self, request: HttpRequest, path: str) -> HttpResponse | BatchDelivery:
        if refusal := self._policy.refusal(request.headers):
            challenge = (("www-authenticate", 'Basic realm="hermes"'),) if refusal.status == 401 else ()
            raise failed(refusal.status, refusal.detail, *challenge)
        methods = self._routes.get(path)
        if methods is None:
            raise failed(404, "Not Found")
        handler = methods.get(request.scope["method"])
        if handler is None:
            raise failed(405, "Method Not Allowed", ("allow", ", ".join(methods)))
        try:
            return await handler(request)
        except BodyError as error:
            raise invalid(error.details) from error
        except RejectedPostError as error:
            retry = (("retry-after", str(error.retry_after_s)),) if error.retry_after_s else ()
            raise failed(error.status, error.detail, *retry) from error
        except (StoreError, WorkerLost) as error:
            _logger.error("%s %s: %s", request.scope["method"], path, error)
            raise failed(503, str(error), ("retry-after", str(_RETRY_AFTER_S))) from error

    async def _root(self, request: HttpRequest) -> HttpResponse:
        return json_answer({"message": "AtroposLib API"})

    async def _register(self, request: HttpRequest) -> HttpResponse:
        return json_answer(await self._service.register(await request.model(Registration)))

    async def _register_env(self, request: HttpRequest) -> HttpResponse:
        return json_answer(await self._service.register_env(await request.model(EnvRegistration)))

    async def _disconnect_env(self, request: HttpRequest) -> HttpResponse:
        return json_answer(await self._service.disconnect_env((await request.model(EnvReference)).env_id))

    async def _wandb_info(self, request: HttpRequest) -> HttpResponse:
        run = self._service.state.registration
        return json_answer(
            {"group": run.wandb_group if run else None, "project": run.wandb_project if run else None}
        )

    async def _info(self, request: HttpRequest) -> HttpResponse:
        run = self._service.state.registration
        return json_answer(
            {"batch_size": run.batch_size if run else -1, "max_token_len": run.max_token_len if run else -1}
        )

    async def _batch(self, request: HttpRequest) -> HttpResponse | BatchDelivery:
        query = request.query()
        lease_s = _number(query, "lease_s", float, MIN_LEASE_S, MAX_LEASE_S)
        lease_id = _number(query, "lease_id", int, 1, 2**63)
        if lease_id is not None:
            return await self._service.replay(int(lease_id), lease_s)
        found = await self._service.next_batch(lease_s)
        return found if isinstance(found, BatchDelivery) else json_answer(found)

    async def _acknowledge(self, request: HttpRequest) -> HttpResponse:
        return json_answer(await self._service.acknowledge((await request.model(LeaseReference)).lease_id))

    async def _renew(self, request: HttpRequest) -> HttpResponse:
        renewal = await request.model(LeaseRenewal)
        return json_answer(await self._service.renew(renewal.lease_ids, renewal.lease_s))

    async def _latest_example(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(await self._service.latest_example())

    async def _scored_data(self, request: HttpRequest) -> HttpResponse:
        return await self._post(request, many=False)

    async def _scored_data_list(self, request: HttpRequest) -> HttpResponse:
        return await self._post(request, many=True)

    async def _post(self, request: HttpRequest, *, many: bool) -> HttpResponse:
        key = request.headers.get(b"idempotency-key", b"").decode("latin-1") or None
        if key is not None and len(key) > _MAX_KEY_CHARS:
            message = f"at most {_MAX_KEY_CHARS} characters"
            loc = ["header", "idempotency-key"]
            raise invalid([{"type": "too_long", "loc": loc, "msg": message, "input": None}])
        groups = await self._parser.parse(await request.json_body(), many=many)
        return json_answer(await self._service.intake.post(groups, many=many, key=key))

    async def _status(self, request: HttpRequest) -> HttpResponse:
        return json_answer(status(self._service, time.time()))

    async def _status_env(self, request: HttpRequest) -> HttpResponse:
        return json_answer(self._service.env_status((await request.model(EnvReference)).env_id))

    async def _reset_data(self, request: HttpRequest) -> HttpResponse:
        await self._service.reset()
        return HttpResponse(b"Reset successful", content_type="text/plain; charset=utf-8")

    async def _metrics(self, request: HttpRequest) -> HttpResponse:
        text = self._service.metrics.render(gauges(self._service, time.time()))
        return HttpResponse(text.encode(), content_type="text/plain; version=0.0.4; charset=utf-8")

    async def _openapi(self, request: HttpRequest) -> HttpResponse:
        return json_answer(openapi.document())

    async def _docs(self, request: HttpRequest) -> HttpResponse:
        return HttpResponse(openapi.page().encode(), content_type="text/html; charset=utf-8")


def _number(
    query: dict[str, str], name: str, kind: type[int] | type[float], least: float, most: float
) -> float | None:
    if name not in query:
        return None
    try:
        value = kind(query[name])
    except ValueError:
        value = least - 1
    if not least <= value <= most:
        message = f"a number from {least:g} to {most:g}"
        raise invalid([{"type": "number", "loc": ["query", name], "msg": message, "input": query[name][:80]}])
    return value
