"""The rating desk over HTTP: routes that an application mounts behind its own access checks.

    POST /ratings                   a draft as JSON; the same id twice is one rating      → {"rating": {...}}
    POST /ratings/ID/undo           {"rater", "id"}                                       → {"rating": {...}}
    GET  /ratings?trajectory=ID     the ratings that count                                → {"ratings": [...]}
    GET  /queues                    all queues with their progress                        → {"queues": [...]}
    POST /queues                    {"name", "rule", "mode", ...}                         → {"added": n}
    POST /queues/NAME/next          {"rater"}: the next item, leased                      → {"item": {...}}
    POST /queues/NAME/release       {"rater", "item", "skip"}                             → {}
    GET  /agreement?queue=NAME      alpha, kappa, position bias, seconds by rater         → {...}

A request that makes no sense is answered with 400, {"error", "hint"}; nothing is recorded then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route, Router

from hermes.core import JSONObject
from hermes.core.rating import RatingDraft, to_json
from hermes.errors import HermesError, UsageError
from hermes.ratings import agreement
from hermes.ratings.desk import RatingDesk
from hermes.ratings.settings import QueueRule, QueueSettings, RatingMode
from hermes.serving.json_body import read_json_object
from hermes.store import Reader

_MOST_BYTES = 1 << 20
Handler = Callable[[Request], Awaitable[JSONObject]]


def rating_router(desk: RatingDesk, db: Path) -> Router:
    """Mount it under any prefix. Every call runs in a thread: a rating waits for the disk."""

    async def record(request: Request) -> JSONObject:
        draft = RatingDraft.from_json(await read_json_object(request, _MOST_BYTES))
        return {"rating": to_json(await asyncio.to_thread(desk.record, draft))}

    async def undo(request: Request) -> JSONObject:
        body = await read_json_object(request, _MOST_BYTES)
        rater, event_id = _text(body, "rater"), _text(body, "id", optional=True)
        rating_id = request.path_params["rating_id"]
        event = await asyncio.to_thread(desk.undo, rating_id, rater or "", event_id=event_id)
        return {"rating": to_json(event)}

    async def ratings(request: Request) -> JSONObject:
        trajectory_id = request.query_params.get("trajectory", "")

        def read() -> list[JSONObject]:
            with Reader(db) as reader:
                reader.get(trajectory_id)
                return [to_json(rating) for rating in reader.ratings_about(trajectory_id)]

        return {"ratings": await asyncio.to_thread(read)}

    async def queues(request: Request) -> JSONObject:
        if request.method == "POST":
            name, settings = _queue_settings(await read_json_object(request, _MOST_BYTES))
            return {"added": await asyncio.to_thread(desk.create_queue, name, settings)}
        progress = await asyncio.to_thread(lambda: [desk.progress(name) for name in desk.queues()])
        return {"queues": [asdict(entry) for entry in progress]}

    async def next_item(request: Request) -> JSONObject:
        rater = _text(await read_json_object(request, _MOST_BYTES), "rater") or ""
        item = await asyncio.to_thread(desk.next_item, request.path_params["name"], rater)
        return {"item": None if item is None else asdict(item)}

    async def release(request: Request) -> JSONObject:
        body = await read_json_object(request, _MOST_BYTES)
        rater, item = _text(body, "rater") or "", _text(body, "item") or ""
        skip = body.get("skip") is True
        await asyncio.to_thread(desk.release, request.path_params["name"], item, rater, skip=skip)
        return {}

    async def agreed(request: Request) -> JSONObject:
        return await asyncio.to_thread(_agreement, db, request.query_params.get("queue"))

    return Router(
        [
            Route("/ratings", _answer(record), methods=["POST"]),
            Route("/ratings", _answer(ratings), methods=["GET"]),
            Route("/ratings/{rating_id}/undo", _answer(undo), methods=["POST"]),
            Route("/queues", _answer(queues), methods=["GET", "POST"]),
            Route("/queues/{name}/next", _answer(next_item), methods=["POST"]),
            Route("/queues/{name}/release", _answer(release), methods=["POST"]),
            Route("/agreement", _answer(agreed), methods=["GET"]),
        ]
    )


def agreement_json(report: agreement.AgreementReport) -> JSONObject:
    """As HTTP and `hermes rate stats --json` write it."""

    def share(value: agreement.Share) -> JSONObject:
        return {"count": value.count, "total": value.total, "share": value.value, "interval": value.interval}

    return {
        "raters": [
            {
                "rater": entry.rater,
                "source": entry.source.value,
                "ratings": entry.ratings,
                "seconds": entry.seconds,
                "first_shown": share(entry.first_shown),
                "repeats": share(entry.repeats),
            }
            for entry in report.raters
        ],
        "scales": [
            {
                "kind": scale.kind.value,
                "scale": scale.scale.value,
                "items": scale.items,
                "alpha": scale.alpha,
                "kappa": [{"raters": list(names), "kappa": value} for names, value in scale.kappa.items()],
            }
            for scale in report.scales
        ],
        "machines": {name: share(value) for name, value in report.machines.items()},
        "first_shown": share(report.first_shown),
    }


def _agreement(db: Path, queue: str | None) -> JSONObject:
    with Reader(db) as reader:
        if queue is not None:
            reader.queue_settings(queue)
        ratings = reader.all_ratings() if queue is None else reader.queue_ratings(queue)
        return agreement_json(agreement.report(ratings))


def _queue_settings(body: JSONObject) -> tuple[str, QueueSettings]:
    names = {item.name for item in fields(QueueSettings)}
    unknown = body.keys() - names - {"name"}
    if unknown:
        raise UsageError(f"a queue has no setting '{min(unknown)}'", f"settings: {', '.join(sorted(names))}")
    values: dict[str, Any] = {name: value for name, value in body.items() if name != "name"}
    try:
        values["rule"] = QueueRule(values.get("rule", QueueRule.RANDOM))
        values["mode"] = RatingMode(values.get("mode", RatingMode.THUMB))
        values["where"] = tuple(values.get("where", ()))
        return _text(body, "name") or "", QueueSettings(**values)
    except (ValueError, TypeError) as error:
        raise UsageError(f"the settings of the queue are not understood: {error}") from error


def _text(body: JSONObject, name: str, *, optional: bool = False) -> str | None:
    value = body.get(name)
    if value is None and optional:
        return None
    if not isinstance(value, str) or not value.strip():
        raise UsageError(f"the field '{name}' is missing or not a text")
    return value


def _answer(handler: Handler) -> Callable[[Request], Awaitable[Response]]:
    async def handle(request: Request) -> Response:
        try:
            return JSONResponse(await handler(request))
        except UsageError as error:
            return JSONResponse({"error": error.message, "hint": error.hint}, 400)
        except HermesError as error:
            missing = error.message.startswith("no trajectory")
            return JSONResponse({"error": error.message, "hint": error.hint}, 400 if missing else 503)

    return handle
