"""Serves the encyclopaedia on a loopback port: `/search` in SearXNG's JSON, and a page for each article."""

from __future__ import annotations

import json
import threading
from html import escape
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, quote, unquote, urlsplit

from hermes.envs.tasks.corpus.pages import Page, page_at, page_path, search


class CorpusServer:
    """Serves from its own threads between `start` and `stop`."""

    def __init__(self) -> None:
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def page_url(self, title: str) -> str:
        return f"{self.url}{quote(page_path(title))}"

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        parts = urlsplit(self.path)
        if parts.path == "/search":
            query = parse_qs(parts.query).get("q", [""])[0]
            results = [self._result(page) for page in search(query)]
            return self._send(200, "application/json", json.dumps({"query": query, "results": results}))
        page = page_at(unquote(parts.path))
        if page is None:
            return self._send(404, "text/plain", "no such page")
        title = escape(page.title)
        head = f"<!doctype html><html><head><title>{title}</title></head>"
        body = f"<body><article><h1>{title}</h1><p>{escape(page.text)}</p></article></body></html>"
        return self._send(200, "text/html; charset=utf-8", head + body)

    def _result(self, page: Page) -> dict[str, str]:
        url = f"http://{self.headers['Host']}{quote(page.path)}"
        return {"title": page.title, "url": url, "content": f"An article about {page.title}."}

    def _send(self, status: int, kind: str, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: object) -> None:
        """Requests are not logged: the rollouts record them."""
