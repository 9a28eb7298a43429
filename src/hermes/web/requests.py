"""Reading a request: typed values of the query string and of a form, each checked, each with its sentence.

Bodies are limited and read completely before a handler runs. Handlers are plain functions that run in a
thread, so that a slow query never holds up the event loop.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, QueryParams
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.types import Scope

from hermes.web.context import WebContext
from hermes.web.responses import PageError, page

MAX_BODY_BYTES = 1 << 20
_MAX_FIELDS = 1000
_MAX_NUMBER = 2**62
_WHOLE_NUMBER = re.compile(r"-?[0-9]{1,19}")


@dataclass(frozen=True, slots=True)
class WebRequest:
    """A request whose body has been read."""

    scope: Scope
    query: QueryParams
    headers: Headers
    path_values: Mapping[str, Any]
    form: Mapping[str, str]
    """The fields, a repeated one with its last value; empty unless the method is POST."""
    context: WebContext

    @property
    def from_script(self) -> bool:
        """Whether htmx or our own script sent it, so that a part of a page suffices."""
        return "hx-request" in self.headers or self.headers.get("x-requested-with") == "fetch"

    def text(self, name: str, default: str = "", max_chars: int = 2000) -> str:
        """A field of the query string."""
        return _checked_text(name, self.query.get(name, default), max_chars)

    def texts(self, name: str, max_chars: int = 200) -> list[str]:
        """All values of a repeated field of the query string, each once."""
        values = self.query.getlist(name)
        return list(dict.fromkeys(_checked_text(name, value, max_chars) for value in values))

    def integer(
        self, name: str, default: int | None = None, low: int = 0, high: int = _MAX_NUMBER
    ) -> int | None:
        return _checked_integer(name, self.query.get(name, ""), default, low, high)

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        """One of the choices; the first if the query string has none."""
        value = self.query.get(name) or choices[0]
        if value not in choices:
            raise PageError(400, f"{name} cannot be '{value[:80]}'", f"It is one of: {', '.join(choices)}.")
        return value

    def field(self, name: str, default: str = "", max_chars: int = 20_000) -> str:
        """A field of the form."""
        return _checked_text(name, self.form.get(name, default), max_chars)

    def form_integer(
        self, name: str, default: int | None = None, low: int = 0, high: int = _MAX_NUMBER
    ) -> int | None:
        return _checked_integer(name, self.form.get(name, ""), default, low, high)

    def page(self, template: str, values: Mapping[str, Any] | None = None, status: int = 200) -> Response:
        return page(template, self.scope, values or {}, status)

    def confirmation(self, title: str, sources: Sequence[str], back: str) -> Response | None:
        """A page that names the sources of the code that this form runs; None: the form comes from that page.

        Sources that have changed meanwhile are shown again.
        """
        confirmed = hashlib.sha256("\n".join(sources).encode()).hexdigest()
        if self.form.get("confirmed") == confirmed:
            return None
        values = {"title": title, "sources": sources, "form": self.form, "confirmed": confirmed, "back": back}
        return self.page("confirm.html", values)


WebHandler = Callable[[WebRequest], Response]


def endpoint(handler: WebHandler) -> Callable[[Request], Awaitable[Response]]:
    """The handler as Starlette calls it."""

    async def respond(request: Request) -> Response:
        form = await _read_form(request) if request.method == "POST" else {}
        web_request = WebRequest(
            request.scope,
            request.query_params,
            request.headers,
            request.path_params,
            form,
            request.app.state.context,
        )
        return await run_in_threadpool(handler, web_request)

    return respond


async def _read_form(request: Request) -> dict[str, str]:
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind not in ("", "application/x-www-form-urlencoded"):
        raise PageError(
            415, f"a form cannot be sent as {kind[:80]}", "Send application/x-www-form-urlencoded."
        )
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise PageError(413, f"the form is larger than {MAX_BODY_BYTES:,} bytes", "Send less.")
    except ClientDisconnect as error:
        raise PageError(400, "the request ended before its form was complete") from error
    try:
        pairs = parse_qsl(body.decode("utf-8"), keep_blank_values=True, max_num_fields=_MAX_FIELDS)
    except ValueError as error:  # no UTF-8, or too many fields
        raise PageError(
            400, "the form cannot be read", f"It must be UTF-8 with at most {_MAX_FIELDS} fields."
        ) from error
    return dict(pairs)


def _checked_text(name: str, value: str, max_chars: int) -> str:
    if len(value) > max_chars:
        raise PageError(
            400, f"{name} is too long: {len(value):,} characters", f"At most {max_chars:,} are taken."
        )
    if "\x00" in value:
        raise PageError(400, f"{name} contains a NUL character", "Leave it out.")
    return value.strip()


def _checked_integer(name: str, text: str, default: int | None, low: int, high: int) -> int | None:
    if not text:
        return default
    if not (_WHOLE_NUMBER.fullmatch(text) and low <= int(text) <= high):
        bounds = f"from {low:,} to {high:,}" if high < _MAX_NUMBER else f"of at least {low:,}"
        raise PageError(400, f"{name} cannot be '{text[:80]}'", f"It is a whole number {bounds}.")
    return int(text)
