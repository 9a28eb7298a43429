"""Fetching touches only what was checked, and ends in time and within size."""

from __future__ import annotations

import contextlib
import itertools
import ssl
import subprocess
from pathlib import Path

import pytest

from hermes.errors import ToolError
from hermes.safety.fetch import FetchedPage, fetch
from hermes.safety.urls import parse_url
from tests.safety.conftest import Site, bomb


async def get(
    url: str, *, allow: tuple[str, ...] = (), max_bytes: int = 100_000, timeout_s: float = 10
) -> FetchedPage:
    return await fetch(url, allow_hosts=allow, max_bytes=max_bytes, timeout_s=timeout_s)


def ssrf_variants(port: int) -> list[str]:
    """Two hundred and more ways to say 'this machine, that port'."""
    hosts = [
        "127.0.0.1",
        "localhost",
        "LOCALHOST",
        "localhost.",
        "127.0.0.1.",
        "127.1",
        "127.0.1",
        "2130706433",
    ]
    hosts += [
        "0x7f000001",
        "0x7f.0x0.0x0.0x1",
        "0177.0.0.1",
        "017700000001",
        "0177.0.0.01",
        "127.0x1",
        "0x7F.1",
    ]
    hosts += [
        "127.000.000.001",
        "00127.0.0.1",
        "0",
        "0.0.0.0",
        "0x0",
        "00",
        "127.0.0.2",
        "127.127.127.127",
        "127.255.255.254",
    ]
    hosts += [
        "[::1]",
        "[0:0:0:0:0:0:0:1]",
        "[::]",
        "[0000::1]",
        "[::ffff:127.0.0.1]",
        "[::ffff:7f00:1]",
        "[::127.0.0.1]",
    ]
    hosts += [
        "[0:0:0:0:0:ffff:127.0.0.1]",
        "[64:ff9b::127.0.0.1]",
        "[2002:7f00:1::]",
        "[::ffff:0:127.0.0.1]",
        "[::FFFF:7F00:1]",
    ]
    hosts += ["①②⑦.⓪.⓪.①", "127。0。0。1", "１２７.0.0.1", "ⓛocalhost", "loc\u00adalhost"]
    schemes = ["http://", "HTTP://", "http:", "https://"]
    paths = ["/", "/x?y=z", "/#@example.com"]
    found = [f"{s}{h}:{port}{p}" for s, h, p in itertools.product(schemes[:2], hosts, paths[:2])]
    found += [f"{s}{h}:{port}/" for s, h in itertools.product(schemes[2:], hosts)]
    found += [
        f"http://{user}127.0.0.1:{port}/" for user in ("a@", "a:b@", "example.com@", "example.com:80@", "@")
    ]
    found += [f"http://example.com\\@127.0.0.1:{port}/", f"http://127.0.0.1:{port}\\@example.com/"]
    found += [f"http://127.0.0.1:{port}#@example.com", f"http:/127.0.0.1:{port}", f"http:127.0.0.1:{port}"]
    found += [
        f"http://[::1%25lo]:{port}/",
        f"http://[::1%lo]:{port}/",
        f"http://127.0.0.1%00:{port}",
        f"http://127.0.0.1%2f:{port}",
    ]
    found += [
        f" http://127.0.0.1:{port}",
        f"http://127.0.0.1:{port}\n",
        f"ht\ntp://127.0.0.1:{port}",
        f"//127.0.0.1:{port}",
    ]
    found += [
        f"{scheme}://127.0.0.1:{port}/"
        for scheme in ("ftp", "gopher", "ws", "file", "dict", "unix", "http+unix", "jar")
    ]
    return found


async def test_two_hundred_spellings_of_this_machine_do_not_reach_a_server_on_it(canary: Site) -> None:
    variants = ssrf_variants(canary.port)
    assert len(variants) >= 200
    for url in variants:
        with pytest.raises(ToolError):
            await get(url, timeout_s=5)
    assert canary.hits == []


async def test_without_the_guard_many_of_the_spellings_would_reach_it(canary: Site) -> None:
    for url in ssrf_variants(canary.port):
        if url.startswith("http://") and "[" not in url:
            with contextlib.suppress(ToolError):
                await get(url, allow=(parse_url(url).host,))
    assert len(canary.hits) > 30


async def test_an_exempt_host_is_fetched_with_its_own_name_in_the_request(site: Site) -> None:
    site.pages["/page"] = (200, {"Content-Type": "text/html; charset=utf-8"}, b"<p>hi</p>")
    url = f"http://localhost:{site.port}/page"
    fetched = await get(url, allow=(f"localhost:{site.port}",))
    assert fetched == FetchedPage(url, 200, "text/html; charset=utf-8", b"<p>hi</p>")
    assert site.hits == [(f"localhost:{site.port}", "/page")]


async def test_an_error_status_is_a_result(site: Site) -> None:
    site.pages["/gone"] = (410, {}, b"gone")
    fetched = await get(site.url("/gone"), allow=("127.0.0.1",))
    assert (fetched.status, fetched.content_type, fetched.body) == (410, "", b"gone")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_to_an_exempt_place_is_followed(site: Site, status: int) -> None:
    site.pages["/a"] = (status, {"Location": "/b#part"}, b"")
    fetched = await get(site.url("/a"), allow=(f"127.0.0.1:{site.port}",))
    assert (fetched.url, fetched.body) == (site.url("/b"), b"hello")


async def test_a_redirect_to_a_private_address_is_refused_and_not_followed(site: Site, canary: Site) -> None:
    allow = (f"127.0.0.1:{site.port}",)
    for location in (
        canary.url(),
        f"//127.0.0.1:{canary.port}/",
        f"http://localhost:{canary.port}/",
    ):
        site.pages["/a"] = (302, {"Location": location}, b"")
        with pytest.raises(ToolError) as refusal:
            await get(site.url("/a"), allow=allow)
        assert refusal.value.kind == "refused"
    for location in ("file:///etc/passwd", "http://user:pw@127.0.0.1/"):
        site.pages["/a"] = (302, {"Location": location}, b"")
        with pytest.raises(ToolError):
            await get(site.url("/a"), allow=allow)
    assert canary.hits == []


async def test_redirects_in_circles_end(site: Site) -> None:
    site.pages["/a"] = (302, {"Location": "/a"}, b"")
    with pytest.raises(ToolError, match="redirects"):
        await get(site.url("/a"), allow=("127.0.0.1",))
    assert len(site.hits) == 6


async def test_a_name_that_changes_its_address_after_the_check_is_still_fetched_where_it_was_checked(
    site: Site, canary: Site
) -> None:
    answers = iter([["127.0.0.1"], ["127.0.0.1"]])
    asked: list[str] = []

    def rebinding(host: str, port: int) -> list[str]:
        asked.append(host)
        return next(answers)

    url = f"http://rebind.example:{site.port}/"
    fetched = await fetch(
        url, allow_hosts=("rebind.example",), max_bytes=1000, timeout_s=5, resolve=rebinding
    )
    assert fetched.body == b"hello"
    assert asked == ["rebind.example"]  # once: nothing resolves it again on the way
    assert site.hits == [(f"rebind.example:{site.port}", "/")]


async def test_a_name_that_turns_private_for_the_redirect_is_refused(site: Site) -> None:
    """Exempt by port for the first request; its second answer is judged like any other."""
    answers = iter([["127.0.0.1"], ["127.0.0.1"]])
    site.pages["/a"] = (302, {"Location": f"http://rebind.example:{site.port + 1}/"}, b"")
    with pytest.raises(ToolError) as refusal:
        await fetch(
            f"http://rebind.example:{site.port}/a",
            allow_hosts=(f"rebind.example:{site.port}",),
            max_bytes=1000,
            timeout_s=5,
            resolve=lambda host, port: next(answers),
        )
    assert refusal.value.kind == "refused"


async def test_the_next_address_is_tried_when_one_does_not_answer(site: Site) -> None:
    fetched = await fetch(
        f"http://two.example:{site.port}/",
        allow_hosts=("two.example",),
        max_bytes=1000,
        timeout_s=5,
        resolve=lambda host, port: ["127.0.0.9", "127.0.0.1"],  # the server listens on the second only
    )
    assert fetched.body == b"hello"


async def test_a_body_over_the_limit_is_refused_compressed_or_not(site: Site) -> None:
    site.pages["/big"] = (200, {}, b"x" * 20_001)
    site.pages["/bomb"] = (200, {"Content-Encoding": "gzip"}, bomb(30_000_000))
    site.pages["/fits"] = (200, {"Content-Encoding": "gzip"}, bomb(20_000))
    for path in ("/big", "/bomb"):
        with pytest.raises(ToolError, match="larger than 20000 bytes"):
            await get(site.url(path), allow=("127.0.0.1",), max_bytes=20_000)
    assert len((await get(site.url("/fits"), allow=("127.0.0.1",), max_bytes=20_000)).body) == 20_000


@pytest.mark.parametrize("encoding", ["br", "gzip"])
async def test_an_encoding_that_was_not_asked_for_or_is_not_there_is_an_error(
    site: Site, encoding: str
) -> None:
    site.pages["/odd"] = (200, {"Content-Encoding": encoding}, b"not compressed at all")
    with pytest.raises(ToolError):
        await get(site.url("/odd"), allow=("127.0.0.1",))


async def test_a_server_that_hangs_ends_in_a_time_out(site: Site) -> None:
    with pytest.raises(ToolError) as failure:
        await get(site.url("/hang"), allow=("127.0.0.1",), timeout_s=0.3)
    assert failure.value.kind == "timeout"


async def test_a_refused_connection_is_a_failure(site: Site) -> None:
    site.server_close()
    with pytest.raises(ToolError) as failure:
        await get(site.url(), allow=("127.0.0.1",))
    assert failure.value.kind == "failed"


async def test_a_proxy_in_the_environment_is_not_used(
    site: Site, canary: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTP_PROXY", canary.url())
    monkeypatch.setenv("http_proxy", canary.url())
    await get(site.url(), allow=("127.0.0.1",))
    assert canary.hits == []


async def test_tls_is_verified_for_the_name_in_the_url_not_for_the_address(
    tmp_path: Path, tls_site: Site
) -> None:
    """The server's certificate is self-made; whoever verifies must refuse it, having sent the name."""
    with pytest.raises(ToolError, match=r"(?i)certificate"):
        await fetch(
            f"https://tls.example:{tls_site.port}/",
            allow_hosts=("tls.example",),
            max_bytes=1000,
            timeout_s=5,
            resolve=lambda host, port: ["127.0.0.1"],
        )
    assert tls_site.pages["sni"][2] == b"tls.example"
    assert tls_site.hits == []


@pytest.fixture
def tls_site(tmp_path: Path, site: Site) -> Site:
    key, certificate = tmp_path / "key.pem", tmp_path / "cert.pem"
    subject = ["-subj", "/CN=tls.example", "-addext", "subjectAltName=DNS:tls.example", "-days", "1"]
    make = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    subprocess.run(
        [*make, "-keyout", str(key), "-out", str(certificate), *subject], check=True, capture_output=True
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate, key)

    def note(_: ssl.SSLObject, name: str | None, __: ssl.SSLContext) -> None:
        site.pages["sni"] = (0, {}, (name or "").encode())

    context.sni_callback = note  # type: ignore[assignment]
    site.socket = context.wrap_socket(site.socket, server_side=True)
    return site
