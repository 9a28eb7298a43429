"""The list of trajectories: one query box, pages by key, search with the words marked."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from starlette.responses import JSONResponse, Response

from hermes.web.query import DEFAULT_QUERY, TrajectoryQuery, field_names, parse_query
from hermes.web.render.text import search_words
from hermes.web.requests import WebRequest

_PAGE = 50
_VALUE_FIELDS = ("outcome", "source", "model", "run")
_COMMON = ("reward>0", "rating>=4", "rating<=2", "tool_errors>0", "turns>=10")


def show(request: WebRequest) -> Response:
    """The page, or for htmx only the rows that follow."""
    query = parse_query(request.text("q", DEFAULT_QUERY))
    before = request.integer("before")
    with request.context.reader() as reader:
        page = reader.page(query.sql, query.words, before=before, limit=_PAGE)
        known_values = (
            {} if request.from_script else {name: reader.recent_values(name) for name in _VALUE_FIELDS}
        )
        total = reader.count_matching([]).number if not request.from_script else 0
    values: dict[str, Any] = {
        "query": query,
        "default_query": DEFAULT_QUERY,
        "rows": page.rows,
        "words": search_words(query.words),
        "next": _next_url(query, page.next_before),
        "first_page": before is None,
    }
    if request.from_script:
        return request.page("trajectories_rows.html", values)
    values |= {
        "total": total,
        "basket": urlencode({"q": query.text}),
        "suggestions": _suggestions(query, known_values),
        "fields": field_names(),
        "known_values": known_values,
        "count_url": f"/trajectories/count?{urlencode({'q': query.text})}" if query.text else "",
    }
    return request.page("trajectories.html", values)


def count(request: WebRequest) -> Response:
    query = parse_query(request.text("q"))
    with request.context.reader() as reader:
        counted = reader.count_matching(query.sql, query.words)
    if not request.from_script:
        return JSONResponse({"count": counted.number, "exact": counted.exact})
    return request.page("trajectories_count.html", {"counted": counted})


def _next_url(query: TrajectoryQuery, before: int | None) -> str:
    if before is None:
        return ""
    return f"/trajectories?{urlencode({'q': query.text, 'before': before})}"


def _suggestions(query: TrajectoryQuery, known_values: dict[str, list[str]]) -> list[tuple[str, str]]:
    """Conditions that one click adds: label and query string."""
    used = {condition.field for condition in query.conditions}
    values = [
        f'{name}="{value}"' if " " in value else f"{name}={value}"
        for name in ("outcome", "source", "model")
        if name not in used and len(known_values[name]) > 1
        for value in known_values[name][:3]
        if '"' not in value and len(value) < 60
    ]
    common = [text for text in _COMMON if text.partition(">")[0].partition("<")[0] not in used]
    return [(text, query.adding(text)) for text in [*values, *common][:10]]


ROUTES = (
    ("GET", "/trajectories", show),
    ("GET", "/trajectories/count", count),
)
