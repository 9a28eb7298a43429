"""The web app against other sites, other hosts, forged sessions, climbing names and odd requests."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from hermes.web.app import PAGES
from hermes.web.security import HEADERS, SESSION_COOKIE, session_value
from tests.web.samples import fill
from tests.web.site import WebSite, open_site

TOKEN = "a-token-of-enough-characters"
CHANGING = [path for method, path, _ in PAGES if method != "GET"]
NAMED = sorted({path for method, path, _ in PAGES if method == "GET" and "{" in path})
CLIMBING = [
    "..",
    "../../secret",
    "..%2f..%2fsecret",
    "%2e%2e%2fsecret",
    "..\\secret",
    "/etc/passwd",
    "%00",
    ".",
]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebSite]:
    home = tmp_path_factory.mktemp("web") / "home"
    fill(home)
    (home.parent / "secret").write_text("the secret of the folder above")
    with open_site(home) as running:
        yield running


@pytest.fixture(scope="module")
def locked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebSite]:
    with open_site(tmp_path_factory.mktemp("locked"), TOKEN) as running:
        yield running


def send(site: WebSite, head: str) -> str:
    """The start of the reply to exactly these bytes."""
    address = urlsplit(site.url)
    with socket.create_connection((address.hostname or "", address.port or 0), timeout=60) as connection:
        connection.sendall(head.replace("\n", "\r\n").encode("latin-1"))
        return connection.recv(65_536).decode("latin-1")


def status(reply: str) -> int:
    return int(reply.split()[1])


def concrete(path: str, value: str = "x") -> str:
    return re.sub(r"\{[^}]+\}", value, path)


def test_every_page_that_changes_something_is_known() -> None:
    assert len(CHANGING) >= 5
    assert NAMED


@pytest.mark.parametrize("path", CHANGING)
@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://127.0.0.1"},
        {"origin": "http://localhost:1"},
        {"origin": "http://127.0.0.1.evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
        {"referer": "http://evil.example/form"},
    ],
    ids=lambda headers: " ".join(f"{name} {value}" for name, value in headers.items()),
)
def test_no_form_of_another_site_changes_anything(site: WebSite, path: str, headers: dict[str, str]) -> None:
    # A form of our own has an origin; only where another header speaks for the other site is it kept.
    own = {} if "origin" in headers else {"origin": site.url}
    if "referer" in headers:
        own = {}
    reply = site.send(
        "POST",
        concrete(path),
        b"",
        {"content-type": "application/x-www-form-urlencoded", **own, **headers},
    )
    assert reply.status == 403, reply.text[:300]


@pytest.mark.parametrize("path", CHANGING)
def test_what_changes_something_is_no_get(site: WebSite, path: str) -> None:
    if ("GET", path) not in {(method, page) for method, page, _ in PAGES}:
        assert site.get(concrete(path)).status in (404, 405)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "127.0.0.1.evil.example",
        "localhost.evil.example",
        "127.0.0.1@evil.example",
        "evil.example:80",
        "[::ffff:6.6.6.6]",
        "0.0.0.0",
        "",
        "127.0.0.1 evil.example",
    ],
)
def test_a_name_that_was_bound_to_loopback_is_refused(site: WebSite, host: str) -> None:
    assert status(send(site, f"GET /trajectories HTTP/1.1\nHost: {host}\nConnection: close\n\n")) in (
        400,
        403,
    )


@pytest.mark.parametrize(
    "extra", ["X-Forwarded-Host: 127.0.0.1", "Forwarded: host=127.0.0.1", "X-Original-Host: localhost"]
)
def test_no_other_header_stands_for_the_host(site: WebSite, extra: str) -> None:
    head = f"GET /trajectories HTTP/1.1\nHost: evil.example\n{extra}\nConnection: close\n\n"
    assert status(send(site, head)) in (400, 403)


def test_two_hosts_are_not_a_way_in(site: WebSite) -> None:
    for first, second in ((site.host, "evil.example"), ("evil.example", site.host)):
        head = f"GET / HTTP/1.1\nHost: {first}\nHost: {second}\nConnection: close\n\n"
        assert status(send(site, head)) in (400, 403), (first, second)


@pytest.mark.parametrize("method", ["TRACE", "OPTIONS", "PUT", "DELETE", "PATCH", "CONNECT", "FOO"])
def test_other_methods_do_nothing(site: WebSite, method: str) -> None:
    reply = send(site, f"{method} /trajectories HTTP/1.1\nHost: {site.host}\nX-Probe: mirrored\n\n")
    assert 400 <= status(reply) < 500
    assert "mirrored" not in reply


def test_an_upgrade_is_refused_and_the_server_goes_on(site: WebSite) -> None:
    upgrade = (
        "Connection: Upgrade\nUpgrade: websocket\nSec-WebSocket-Version: 13\nSec-WebSocket-Key: QUFBQQ=="
    )
    reply = send(
        site, f"GET /trajectories HTTP/1.1\nHost: {site.host}\nOrigin: http://evil.example\n{upgrade}\n\n"
    )
    assert status(reply) in (400, 403, 404, 426)
    assert site.get("/").status == 200


@pytest.mark.parametrize(
    "cookie",
    [
        TOKEN,
        session_value(TOKEN)[:-1],
        session_value(TOKEN).upper(),
        session_value("another token of a server"),
        session_value(""),
        "",
        f'"{session_value(TOKEN)}x"',
        "\xff" * 64,
    ],
)
def test_a_forged_session_is_none(locked: WebSite, cookie: str) -> None:
    head = f"GET /trajectories HTTP/1.1\nHost: {locked.host}\nConnection: close\n"
    assert status(send(locked, f"{head}Cookie: {SESSION_COOKIE}={cookie}\n\n")) in (400, 401)


@pytest.mark.parametrize(
    "path",
    [
        "/static/../trajectories",
        "/static/%2e%2e/trajectories",
        "/static//trajectories",
        "/sign-in/../trajectories",
        "/sign-in/trajectories",
        "/sign-in%2f..%2ftrajectories",
        "//trajectories",
        "/./trajectories",
    ],
)
def test_no_path_that_is_open_leads_past_the_token(locked: WebSite, path: str) -> None:
    reply = locked.get(path)
    assert reply.status in (401, 404)
    assert "<table" not in reply.text


def test_signing_in_leads_to_this_site_only(locked: WebSite) -> None:
    for path in ("/sign-in?next=//evil.example", "/sign-in?next=https://evil.example/"):
        reply = locked.post(path, {"token": TOKEN, "next": "//evil.example"})
        assert (reply.status, reply.headers["location"]) == (303, "/")


@pytest.mark.parametrize("path", NAMED)
def test_names_that_climb_show_nothing_and_make_nothing(site: WebSite, path: str) -> None:
    before = _files(site)
    for name in CLIMBING:
        reply = site.get(concrete(path, name if "%" in name else quote(name, safe="/.")))
        assert 300 <= reply.status < 500, (name, reply.status)
        assert "the secret of the folder above" not in reply.text
        assert "root:" not in reply.text and "Traceback" not in reply.text
        assert {header: reply.headers.get(header) for header in HEADERS} == HEADERS
    assert _files(site) == before


def _files(site: WebSite) -> list[str]:
    """Without those that SQLite makes and removes beside the database."""
    paths = (str(path) for path in site.home.parent.rglob("*"))
    return sorted(path for path in paths if not path.endswith(("-shm", "-wal", ".lock")))


def test_the_files_of_the_home_are_no_pages(site: WebSite) -> None:
    for name in (".env", "config.yaml", "hermes.db", "../secret"):
        for prefix in ("", "/static", "/jobs", "/runs", "/skills", "/batches"):
            assert site.get(f"{prefix}/{name}").status in (400, 401, 404, 405)
            assert Path(site.home.parent, "secret").exists()
