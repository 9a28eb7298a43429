"""Home: what happened since last time, what runs, what waits to be rated, what the store holds."""

from __future__ import annotations

from typing import Any

from starlette.responses import Response

from hermes.config.paths import db_path
from hermes.core import clock
from hermes.web.query import DEFAULT_QUERY, parse_query
from hermes.web.requests import WebRequest
from hermes.web.runs.listing import RunRow, list_runs

_VISIT_COOKIE = "hermes_visit"
_NEW_VISIT_MS = 30 * 60_000
"""A pause after which what is on the page counts as seen."""
_COOKIE_S = 400 * 86_400


def show(request: WebRequest) -> Response:
    now_ms = clock.now_ms()
    since_ms, latest_ms = _visits(request, now_ms)
    with request.context.reader() as reader:
        figures = reader.figures(since_ms)
        newest = reader.page(parse_query(DEFAULT_QUERY).sql, limit=6).rows
    path = db_path(request.context.home)
    size_bytes = path.stat().st_size if path.exists() else 0
    runs: list[RunRow] = list_runs(request.context.home)
    values: dict[str, Any] = {
        "figures": figures,
        "newest": newest,
        "since_ms": since_ms,
        "size_bytes": size_bytes,
        "active_runs": [run for run in runs if run.active],
        "recent_runs": [run for run in runs if not run.active][:3],
        "store_path": str(path),
    }
    response = request.page("home.html", values)
    response.set_cookie(
        _VISIT_COOKIE, f"{since_ms}.{latest_ms}", max_age=_COOKIE_S, httponly=True, samesite="strict"
    )
    return response


def _visits(request: WebRequest, now_ms: int) -> tuple[int, int]:
    """The end of the previous visit, and now. Requests within half an hour are one visit."""
    cookie = _cookie(request)
    since_text, _, latest_text = cookie.partition(".")
    if not (since_text.isdecimal() and latest_text.isdecimal() and len(cookie) < 32):
        return now_ms - 86_400_000, now_ms
    since_ms, latest_ms = int(since_text), int(latest_text)
    return (latest_ms if now_ms - latest_ms > _NEW_VISIT_MS else since_ms), now_ms


def _cookie(request: WebRequest) -> str:
    for part in request.headers.get("cookie", "").split(";"):
        name, _, value = part.strip().partition("=")
        if name == _VISIT_COOKIE:
            return value
    return ""
