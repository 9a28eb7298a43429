"""A running web app, and HTTP as a browser sends it."""

from __future__ import annotations

import http.client
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlencode, urlsplit

from hermes.config.load import load
from hermes.web.server import WebOptions, serve_in_background


@dataclass(frozen=True)
class Reply:
    status: int
    headers: Mapping[str, str]
    text: str


@dataclass(frozen=True)
class WebSite:
    url: str
    home: Path

    @property
    def host(self) -> str:
        return urlsplit(self.url).netloc

    def get(self, path: str, headers: Mapping[str, str] | None = None) -> Reply:
        return self.send("GET", path, None, headers or {})

    def post(self, path: str, form: Mapping[str, str], headers: Mapping[str, str] | None = None) -> Reply:
        sent = {"content-type": "application/x-www-form-urlencoded", "origin": self.url, **(headers or {})}
        return self.send("POST", path, urlencode(form).encode(), sent)

    def confirm(self, path: str, form: Mapping[str, str]) -> Reply:
        """Sends a form that runs code, and confirms the page that names its files."""
        question = self.post(path, form)
        value = re.search(r'name="confirmed" value="([0-9a-f]+)"', question.text)
        assert value, question.text
        return self.post(path, {**form, "confirmed": value[1]})

    def send(self, method: str, path: str, body: bytes | None, headers: Mapping[str, str]) -> Reply:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        try:
            connection.putrequest(method, path, skip_host="host" in headers, skip_accept_encoding=True)
            for name, value in headers.items():
                connection.putheader(name, value)
            if body is not None:
                connection.putheader("content-length", str(len(body)))
            connection.endheaders(body)
            response = connection.getresponse()
            text = response.read().decode("utf-8", "replace")
            return Reply(
                response.status, {name.lower(): value for name, value in response.getheaders()}, text
            )
        finally:
            connection.close()


@contextmanager
def open_site(home: Path, token: str | None = None, rater_token: str | None = None) -> Iterator[WebSite]:
    config = load(environ={"HERMES_HOME": str(home), "HOME": str(home)})
    with serve_in_background(config, WebOptions(port=0, token=token, rater_token=rater_token)) as url:
        yield WebSite(url, home)
