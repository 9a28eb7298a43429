"""Access, headers, files and errors of the web app, over real HTTP."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.web.responses import STATIC
from hermes.web.security import HEADERS, SESSION_COOKIE
from tests.web.site import WebSite, open_site

TOKEN = "a-token-of-enough-characters"


def test_every_response_carries_the_same_headers(site: WebSite, ids: list[str]) -> None:
    paths = ["/", "/trajectories", f"/trajectories/{ids[0]}", "/runs", "/nothing", "/trajectories?before=x"]
    paths += [
        "/static/app.css",
        "/static/nothing",
        "/runs/curves",
        "/sign-in",
        f"/trajectories/{ids[0]}/download",
    ]
    for path in paths:
        reply = site.get(path)
        assert {name: reply.headers.get(name) for name in HEADERS} == HEADERS, path
    refused = site.get("/", {"host": "evil.example"})
    assert refused.status == 403
    assert {name: refused.headers.get(name) for name in HEADERS} == HEADERS
    assert "unsafe" not in HEADERS["content-security-policy"]


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"origin": "http://evil.example"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_requests_of_other_sites_are_refused(site: WebSite, headers: dict[str, str]) -> None:
    assert site.get("/trajectories", headers).status == 403


def test_a_form_from_another_port_is_refused(site: WebSite) -> None:
    """Another server of this machine has the same host but not the same origin."""
    assert site.post("/runs/x/stop", {}, {"origin": "http://127.0.0.1:1"}).status == 403
    assert site.post("/runs/x/stop", {}).status == 400


def test_with_a_token_only_those_who_have_it_come_in(tmp_path: Path) -> None:
    with open_site(tmp_path, TOKEN) as site:
        assert site.get("/").status == 401
        assert "Sign in" in site.get("/").text
        assert site.get("/", {"authorization": f"Bearer {TOKEN}"}).status == 200
        assert site.get("/", {"authorization": "Bearer wrong"}).status == 401
        assert site.get("/", {"cookie": f"{SESSION_COOKIE}={TOKEN}"}).status == 401
        assert site.post("/sign-in", {"token": "wrong"}).status == 401
        signed = site.post("/sign-in", {"token": TOKEN})
        assert signed.status == 303
        cookie = signed.headers["set-cookie"]
        assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower() and TOKEN not in cookie
        assert site.get("/", {"cookie": cookie.partition(";")[0]}).status == 200


def test_another_address_needs_a_token(tmp_path: Path) -> None:
    environ = {"HERMES_HOME": str(tmp_path), "PATH": "/usr/bin:/bin", "HOME": str(tmp_path)}
    command = [sys.executable, "-m", "hermes", "web", "--host", "0.0.0.0", "--port", "0", "--no-open"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "refusing to listen on 0.0.0.0 without a token" in done.stderr
    assert "HERMES_WEB_TOKEN" in done.stderr


def test_vendored_files_are_what_was_published() -> None:
    published = {
        line.split()[1]: line.split()[0]
        for line in (STATIC / "vendor" / "SHA256SUMS").read_text().splitlines()
    }
    files = {path.name for path in (STATIC / "vendor").iterdir()} - {"SHA256SUMS"}
    assert files == set(published)
    for name, digest in published.items():
        assert hashlib.sha256((STATIC / "vendor" / name).read_bytes()).hexdigest() == digest, name
    assert {"htmx.LICENSE", "uplot.LICENSE"} <= files


def test_the_first_load_is_small(site: WebSite) -> None:
    """Each page with all that it loads, uncompressed."""
    for path in ("/", "/trajectories", "/trajectories/last", "/rate", "/runs"):
        text = site.get(path).text
        loaded = set(re.findall(r'(?:src|href)="(/static/[^"]+)"', text))
        assert len(loaded) >= 4
        files = sum(len(site.get(address).text.encode()) for address in loaded)
        assert files + len(text.encode()) < 200_000, path


def test_large_pages_are_compressed(site: WebSite) -> None:
    reply = site.get("/trajectories", {"accept-encoding": "gzip"})
    assert reply.headers["content-encoding"] == "gzip"
    assert int(reply.headers["content-length"]) < 10_000


@pytest.mark.parametrize(
    "path",
    [
        "/trajectories?q=foo%3D1",
        "/trajectories?q=turns%3Cmany",
        "/trajectories?before=-1",
        "/trajectories?before=99999999999999999999",
        "/trajectories?q=" + "x" * 3000,
        "/trajectories?q=a%00b",
        "/trajectories/NOTHING",
        "/trajectories/..%2f..%2fetc",
        "/trajectories/%C3%A9",
        "/trajectories/last?from=x",
        "/trajectories/last?step=99999",
        "/trajectories/last/steps/99999",
        "/trajectories/last/steps/99999999999999999999",
        "/trajectories/last/steps/0?part=7",
        "/trajectories/last/steps/0/tokens",
        "/trajectories/last/steps/0/images/0",
        "/compare",
        "/compare?id=last",
        "/compare?id=last&id=last",
        "/compare?id=NOTHING&id=last",
        "/runs/nothing",
        "/runs/..",
        "/runs/nothing/steps/1",
        "/runs/curves",
        "/runs/curves?id=nothing",
        "/runs/diff?id=a",
        "/runs/new?environment=%2Fetc%2Fpasswd",
        "/jobs/0123456789abcdef",
        "/jobs/..",
        "/static/../app.py",
        "/static/%2e%2e/app.py",
    ],
)
def test_bad_addresses_are_a_page_with_a_sentence(site: WebSite, path: str) -> None:
    reply = site.get(path)
    assert 400 <= reply.status < 500, reply.text[:500]
    assert "<h1>" in reply.text and "Traceback" not in reply.text
    assert reply.headers["content-type"].startswith("text/html")


def test_bad_forms_are_a_page_with_a_sentence(site: WebSite) -> None:
    assert site.post("/runs/new", {"environment": "/etc/passwd"}).status == 400
    assert site.post("/runs/new", {}).status == 400
    assert site.post("/", {}).status == 405
    plain = site.post("/runs/new", {}, {"content-type": "text/plain"})
    assert plain.status == 415 and "Traceback" not in plain.text
    assert site.post("/runs/new", {"environment": "x" * 2_000_000}).status == 413


def test_an_empty_home_says_what_to_do(tmp_path: Path) -> None:
    with open_site(tmp_path / "new") as site:
        for path in ("/", "/trajectories", "/runs"):
            reply = site.get(path)
            assert reply.status == 200 and "hermes" in reply.text, path
        assert not (tmp_path / "new").exists(), "reading makes nothing"
