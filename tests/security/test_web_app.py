"""The web app against other sites, other hosts, forged sessions, climbing names and odd requests."""

from __future__ import annotations

import hashlib
import hmac
import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from hermes.errors import UsageError
from hermes.web.app import PAGES
from hermes.web.security import HEADERS, SESSION_COOKIE, WebSessions
from tests.web.samples import fill
from tests.web.site import WebSite, open_site

TOKEN = "a-token-of-enough-characters"
RATER_TOKEN = "a-token-for-those-who-rate"
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


def signed_in(site: WebSite, token: str) -> str:
    """The cookie that the sign-in page sets for this token."""
    reply = site.post("/sign-in", {"token": token})
    assert reply.status == 303
    return reply.headers["set-cookie"].partition(";")[0].partition("=")[2]


def test_a_forged_session_is_none(locked: WebSite) -> None:
    cookie = signed_in(locked, TOKEN)
    digest = hmac.new(b"hermes web session", TOKEN.encode(), hashlib.sha256).hexdigest()
    forged = [TOKEN, digest, cookie[:-1], cookie.swapcase(), cookie[::-1], "", f'"{cookie}x"', "\xff" * 64]
    head = f"GET /trajectories HTTP/1.1\nHost: {locked.host}\nConnection: close\n"
    assert status(send(locked, f"{head}Cookie: {SESSION_COOKIE}={cookie}\n\n")) == 200
    for value in forged:
        assert status(send(locked, f"{head}Cookie: {SESSION_COOKIE}={value}\n\n")) in (400, 401), value


def test_two_browsers_have_different_cookies_and_signing_out_revokes_one(locked: WebSite) -> None:
    first, second = (signed_in(locked, TOKEN) for _ in range(2))
    assert first != second
    headers = {"cookie": f"{SESSION_COOKIE}={first}"}
    assert 'action="/sign-out"' in locked.get("/", headers).text
    reply = locked.post("/sign-out", {}, headers)
    assert (reply.status, reply.headers["location"]) == (303, "/sign-in")
    assert locked.get("/", headers).status == 401  # the copy that somebody made of it, too
    assert locked.get("/", {"cookie": f"{SESSION_COOKIE}={second}"}).status == 200


def test_cookies_do_not_outlive_the_server(tmp_path: Path) -> None:
    with open_site(tmp_path, TOKEN) as before:
        cookie = signed_in(before, TOKEN)
    with open_site(tmp_path, TOKEN) as after:
        assert after.get("/", {"cookie": f"{SESSION_COOKIE}={cookie}"}).status == 401


RATERS_CHANGE = {"/rate", "/rate/undo", "/rate/rater"}


@pytest.fixture(scope="module")
def rated(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebSite]:
    home = tmp_path_factory.mktemp("rated") / "home"
    fill(home)
    with open_site(home, TOKEN, RATER_TOKEN) as running:
        yield running


@pytest.mark.parametrize("path", [*CHANGING, "/api/queues"])
@pytest.mark.parametrize("way", ["cookie", "bearer"])
def test_a_rater_rates_and_changes_nothing_else(rated: WebSite, path: str, way: str) -> None:
    cookie = f"{SESSION_COOKIE}={signed_in(rated, RATER_TOKEN)}"
    headers = {"cookie": cookie} if way == "cookie" else {"authorization": f"Bearer {RATER_TOKEN}"}
    reply = rated.post(concrete(path), {}, headers)
    if path in RATERS_CHANGE:
        assert reply.status != 403
    else:
        assert reply.status == 403
        assert "reading and rating" in reply.text


def test_a_rater_reads_every_page_but_those_that_run_code(rated: WebSite) -> None:
    headers = {"authorization": f"Bearer {RATER_TOKEN}"}
    for method, path, _ in PAGES:
        if method == "GET" and not path.endswith("/events"):
            refused = rated.get(concrete(path), headers).status == 403
            assert refused == (path == "/runs/new"), path
    rating = {"trajectory_id": "nothing", "verdict": "good", "rater": "ben"}
    sent = {"content-type": "application/json", **headers}
    reply = rated.send("POST", "/api/ratings", json.dumps(rating).encode(), sent)
    assert reply.status == 404 or "nothing" in reply.text  # the desk looked for it


def test_two_tokens_are_two() -> None:
    for rater_token in (TOKEN, "short"):
        with pytest.raises(UsageError, match="HERMES_WEB_RATER_TOKEN"):
            WebSessions(TOKEN, rater_token)


def test_code_runs_only_after_a_page_that_names_its_file(site: WebSite, tmp_path: Path) -> None:
    ran = tmp_path / "ran"
    function = tmp_path / "grader.py"
    function.write_text(f"open({str(ran)!r}, 'w')\ndef score(ctx):\n    return 1.0\n")
    form = {
        "environment": "reward_function",
        "unlock": "1",
        "field.env.reward": f"{function}:score",
        "field.env.group_size": "1",
    }
    for guess in ({}, {"confirmed": "1"}, {"confirmed": "0" * 64}):
        reply = site.post("/runs/new", {**form, **guess})
        assert reply.status == 200 and f"{function}:score" in reply.text
        assert "reward_function.py" in reply.text
    checked = site.post("/environments/check", {"environment": "calculator"})
    assert checked.status == 200 and "calculator" in checked.text and "confirmed" in checked.text
    assert not ran.exists()
    confirmed = re.search(r'name="confirmed" value="([0-9a-f]{64})"', reply.text)
    assert confirmed
    other = {**form, "field.env.reward": f"{tmp_path / 'other.py'}:score", "confirmed": confirmed[1]}
    assert "other.py:score" in site.post("/runs/new", other).text  # a confirmation is for what was shown
    started = site.post("/runs/new", {**form, "confirmed": confirmed[1]})
    assert started.status == 400 and "group_size" in started.text  # rl start has looked at it


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


def test_guessing_tokens_has_a_limit_and_those_who_are_in_stay_in(tmp_path: Path) -> None:
    with open_site(tmp_path, TOKEN) as site:
        cookie = {"cookie": f"{SESSION_COOKIE}={signed_in(site, TOKEN)}"}
        statuses = [site.get("/", {"authorization": f"Bearer guess-{n}"}).status for n in range(20)]
        statuses += [site.post("/sign-in", {"token": f"guess-{n}"}).status for n in range(40)]
        assert set(statuses) == {401, 429} and statuses[0] == 401
        refused = site.post("/sign-in", {"token": TOKEN})
        assert refused.status == 429 and "wait a minute" in refused.text
        assert site.get("/", cookie).status == 200
