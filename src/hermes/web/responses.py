"""Pages from templates, and errors as pages: a sentence, a status, what to do. Never a traceback."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.types import Scope

from hermes import __version__
from hermes.web.render import format as formats
from hermes.web.render.text import ansi_html, plain_html

STATIC = Path(__file__).parent / "static"
_TEMPLATES = Path(__file__).parent / "templates"
THEMES = ("auto", "light", "dark")
ROLE = "hermes.role"
"""Where a request's scope has the role of a person who signed in."""
THEME_COOKIE = "hermes_theme"

NAVIGATION = (
    ("/", "Home"),
    ("/trajectories", "Trajectories"),
    ("/rate", "Rate"),
    ("/runs", "Runs"),
    ("/batches", "Batches"),
    ("/environments", "Environments"),
    ("/policies", "Policies"),
    ("/datasets", "Datasets"),
    ("/skills", "Skills"),
)


_PLACES = {"/compare": "/trajectories"}
"""Pages that belong to one of the navigation."""


class PageError(Exception):
    """A request that gets an error page: what is wrong, and what to do."""

    def __init__(self, status: int, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.hint = hint


@lru_cache(maxsize=1)
def templates() -> Environment:
    environment = Environment(
        loader=FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.globals.update(asset=asset_url, navigation=NAVIGATION, version=__version__)
    environment.filters.update(
        age=formats.age,
        bytes=formats.byte_count,
        clock=formats.clock,
        count=formats.count,
        date=formats.date,
        duration=formats.duration_ms,
        json=formats.pretty_json,
        model_name=formats.model_name,
        number=formats.number,
        short_id=formats.short_id,
        usd=formats.usd,
        plain=plain_html,
        ansi=ansi_html,
    )
    return environment


@lru_cache(maxsize=64)
def asset_url(name: str) -> str:
    """The address of a file in `static`, with a digest of its content, so that it may be cached for ever."""
    digest = hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]
    return f"/static/{name}?v={digest}"


def render(template: str, scope: Scope, values: Mapping[str, Any]) -> str:
    headers = dict(scope["headers"])
    path = scope["path"]
    page_path: str = _PLACES.get(path) or path
    return (
        templates()
        .get_template(template)
        .render(
            path=path,
            section=next(
                (
                    link
                    for link, _ in reversed(NAVIGATION)
                    if link == page_path or page_path.startswith(f"{link}/")
                ),
                "",
            ),
            theme=_theme(headers.get(b"cookie", b"")),
            role=scope.get(ROLE, ""),
            **values,
        )
    )


def page(template: str, scope: Scope, values: Mapping[str, Any], status: int = 200) -> Response:
    return HTMLResponse(render(template, scope, values).encode("utf-8", "replace"), status)


def error_page(scope: Scope, status: int, message: str, hint: str = "") -> Response:
    """A page; for a script that accepts JSON, the same as JSON."""
    if dict(scope["headers"]).get(b"accept", b"").startswith(b"application/json"):
        return JSONResponse({"error": message, "hint": hint}, status)
    return page("error.html", scope, {"status": status, "message": message, "hint": hint}, status)


def _theme(cookies: bytes) -> str:
    for part in cookies.split(b";"):
        name, _, value = part.strip().partition(b"=")
        if name == THEME_COOKIE.encode() and value.decode("latin-1") in THEMES:
            return value.decode("latin-1")
    return "auto"
