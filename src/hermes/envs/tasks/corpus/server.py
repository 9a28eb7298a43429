"""Serves the encyclopaedia on a loopback port: `/search` in SearXNG's JSON, and a page for each article."""

from __future__ import annotations

from contextlib import ExitStack
from html import escape
from typing import TYPE_CHECKING
from urllib.parse import quote

from hermes.envs.tasks.corpus.pages import Page, page_at, page_path, search
from hermes.serving import HttpSettings, listen, serve_in_thread

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp


class CorpusServer:
    """Serves from its own thread between `start` and `stop`; only this user is answered."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._listener = self._stack.enter_context(listen("127.0.0.1", 0))

    @property
    def host(self) -> str:
        return self.url.removeprefix("http://")

    @property
    def url(self) -> str:
        return self._listener.url

    def page_url(self, title: str) -> str:
        return f"{self.url}{quote(page_path(title))}"

    def start(self) -> None:
        settings = HttpSettings(grace_s=1)
        self._stack.enter_context(serve_in_thread(_application(), self._listener, settings, name="corpus"))

    def stop(self) -> None:
        self._stack.close()


def _application() -> ASGIApp:
    from starlette.applications import Starlette
    from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse
    from starlette.routing import Route

    async def find(request: Request) -> Response:
        query = request.query_params.get("q", "")
        results = [_result(request.headers["host"], page) for page in search(query)]
        return JSONResponse({"query": query, "results": results})

    async def show(request: Request) -> Response:
        page = page_at(request.scope["path"])
        if page is None:
            return PlainTextResponse("no such page", 404)
        title = escape(page.title)
        head = f"<!doctype html><html><head><title>{title}</title></head>"
        return HTMLResponse(
            f"{head}<body><article><h1>{title}</h1><p>{escape(page.text)}</p></article></body></html>"
        )

    return Starlette(routes=[Route("/search", find), Route("/{page:path}", show)])


def _result(host: str, page: Page) -> dict[str, str]:
    url = f"http://{host}{quote(page.path)}"
    return {"title": page.title, "url": url, "content": f"An article about {page.title}."}
