"""A web site on a loopback port: fixed pages, and a record of every request.

    with Site({"/": page("<h1>Hi</h1>"), "/old": redirect("/")}) as site:
        site.url("/old")        # "http://127.0.0.1:PORT/old"
        site.host               # "127.0.0.1:PORT", as web.allow_hosts wants it
        site.requests           # [Request(method, path, headers, body), …] in order of arrival

A page may be a function of the request. An unknown path is a 404.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Self


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    """With the query."""
    headers: dict[str, str]
    """Names in lower case."""
    body: bytes


@dataclass(frozen=True)
class Page:
    body: bytes
    content_type: str = "text/html; charset=utf-8"
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)


Pages = Mapping[str, Page | Callable[[Request], Page]]


def page(html: str, status: int = 200) -> Page:
    return Page(f"<!doctype html><html><body>{html}</body></html>".encode(), status=status)


def redirect(location: str) -> Page:
    return Page(b"", status=302, headers={"Location": location})


class Site:
    def __init__(self, pages: Pages | None = None) -> None:
        self.pages = dict(pages or {})
        self.requests: list[Request] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def url(self, path: str = "/") -> str:
        return f"http://{self.host}{path}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: Request) -> Page:
        self.requests.append(request)
        found = self.pages.get(request.path.partition("?")[0], Page(b"not found", "text/plain", 404))
        return found if isinstance(found, Page) else found(request)

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        site = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def _serve(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                headers = {name.lower(): value for name, value in self.headers.items()}
                answer = site._answer(Request(self.command, self.path, headers, body))
                self.send_response(answer.status)
                for name, value in {"Content-Type": answer.content_type, **answer.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                self.wfile.write(answer.body)

            do_GET = do_POST = _serve

            def log_message(self, *arguments: object) -> None:
                """The record is `requests`."""

        return Handler
