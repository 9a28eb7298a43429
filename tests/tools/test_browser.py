"""The browser tools with a real Chromium and a site on loopback."""

from __future__ import annotations

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from hermes.core import JSON
from hermes.tools import registry
from hermes.tools.base import Workbench
from hermes.tools.browser.session import RESOURCE, BrowserSession
from tests.fakes.site import Page, Request, Site, page, redirect
from tests.tools.bench import call, error, text
from tests.tools.services import open_service_bench

missing = registry.get("browser_navigate").unavailable(None, {})  # type: ignore[arg-type]
pytestmark = [
    pytest.mark.skipif(missing is not None, reason=f"browser: {missing}"),
    pytest.mark.asyncio(loop_scope="module"),
]

FORM = """<title>Order</title><h1>Order a pot</h1>
<form action="/thanks"><input name="glaze" aria-label="Glaze"><select name="size" aria-label="Size">
<option>small</option><option>large</option></select><button>Send</button></form>
<a href="/tall">Tall page</a> <a href="/tall" target="_blank">New window</a>
<img src="/pot.png" alt="a blue pot"><script>console.log("ready"); throw new Error("cracked")</script>"""


def thanks(request: Request) -> Page:
    return page(f"<title>Thanks</title><p>{request.path}</p>")


@pytest.fixture(scope="module")
def site() -> Iterator[Site]:
    pages = {
        "/": page(FORM),
        "/thanks": thanks,
        "/tall": page("<title>Tall</title><p>top</p><div style='height:5000px'></div><p>bottom</p>"),
        "/file": Page(b"x", "application/octet-stream", headers={"Content-Disposition": "attachment"}),
    }
    with Site(pages) as running:
        yield running


@pytest.fixture
def canary() -> Iterator[Site]:
    """A server on this machine that the browser has no business with."""
    with Site({"/secret": page("<p>private</p>")}) as running:
        yield running


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def bench(tmp_path_factory: pytest.TempPathFactory, site: Site) -> AsyncIterator[Workbench]:
    """One browser for the tests that leave it usable: starting one is most of what they would cost."""
    settings = {"web.allow_hosts": [site.host]}
    async with open_service_bench(tmp_path_factory.mktemp("browser"), settings) as opened:
        yield opened


def ref(outline: str, label: str) -> str:
    found = re.search(rf"{re.escape(label)}.*?\[ref=(\w+)\]", outline)
    assert found, f"{label} is not in:\n{outline}"
    return found[1]


def session_of(bench: Workbench) -> BrowserSession:
    session = bench.resources[RESOURCE]
    assert isinstance(session, BrowserSession)
    return session


async def shown(bench: Workbench, words: str) -> None:
    """Waits until the page says so."""
    await session_of(bench).page.get_by_text(words).wait_for()


async def test_a_form_is_read_filled_and_sent(bench: Workbench, site: Site) -> None:
    outline = await text(bench, "browser_navigate", url=site.url("/"))
    assert f"url: {site.url('/')}\ntitle: Order\n" in outline
    assert 'heading "Order a pot"' in outline
    await text(bench, "browser_type", ref=ref(outline, 'combobox "Size"'), text="large")
    typed = await text(
        bench, "browser_type", ref=ref(outline, 'textbox "Glaze"'), text="celadon", submit=True
    )
    assert f"url: {site.url('/thanks?glaze=celadon&size=large')}" in typed
    assert "/thanks?glaze=celadon&size=large" in await text(bench, "browser_snapshot")
    assert "Order a pot" in await text(bench, "browser_back")


async def test_links_new_windows_keys_and_scrolling(bench: Workbench, site: Site) -> None:
    outline = await text(bench, "browser_navigate", url=site.url("/"))
    assert "title: Tall" in await text(bench, "browser_click", ref=ref(outline, 'link "New window"'))
    position = await text(bench, "browser_scroll", direction="down")
    assert re.fullmatch(r"at [1-9]\d* of [1-9]\d* pixels", position)
    await text(bench, "browser_press", key="Home")
    assert (await text(bench, "browser_scroll", direction="up")).startswith("at 0 of ")


async def test_images_and_the_console_are_reported(bench: Workbench, site: Site) -> None:
    await text(bench, "browser_navigate", url=site.url("/"))
    (image,) = json.loads(await text(bench, "browser_get_images"))
    assert (image["src"], image["alt"]) == (site.url("/pot.png"), "a blue pot")
    console = await text(bench, "browser_console")
    assert "log: ready" in console and "cracked" in console


async def test_mistakes_are_errors_the_model_can_use(bench: Workbench, site: Site) -> None:
    await text(bench, "browser_navigate", url=site.url("/"))
    wrong: list[tuple[str, dict[str, JSON], str, str]] = [
        ("browser_click", {"ref": "e999"}, "failed", "no element 'e999'"),
        ("browser_click", {"ref": "xpath=//a"}, "bad_arguments", "ref"),
        ("browser_press", {"key": "NoSuchKey"}, "failed", "NoSuchKey"),
        ("browser_navigate", {"url": "file:///etc/passwd"}, "bad_arguments", "not an http or https address"),
        ("browser_navigate", {"url": "http://no-such-host.invalid/"}, "failed", "cannot be resolved"),
    ]
    for name, arguments, kind, reason in wrong:
        found, message = await error(bench, name, **arguments)
        assert found == kind and reason in message


async def test_a_server_that_is_not_there_is_named(tmp_path: Path) -> None:
    with Site() as gone:
        address = gone.url("/")
    async with open_service_bench(tmp_path, {"web.allow_hosts": [gone.host]}) as bench:
        kind, message = await error(bench, "browser_navigate", url=address)
    assert kind == "failed" and f"cannot connect to {address}" in message


async def test_https_is_tunnelled_to_allowed_hosts_only(bench: Workbench, site: Site, canary: Site) -> None:
    kind, message = await error(bench, "browser_navigate", url=f"https://{canary.host}/secret")
    assert kind == "refused" and "not a public address" in message
    kind, message = await error(bench, "browser_navigate", url=f"https://{site.host}/")
    assert kind == "failed" and "ERR_SSL" in message  # the tunnel stood: it is the site that speaks no TLS
    assert canary.requests == []


async def test_a_navigation_into_this_machine_is_refused(bench: Workbench, canary: Site) -> None:
    kind, message = await error(bench, "browser_navigate", url=canary.url("/secret"))
    assert kind == "refused" and "not a public address" in message, message
    assert canary.requests == []


PROBES = """<title>Probe</title><p id=done>waiting</p>
<img src="TARGET"><iframe src="TARGET"></iframe><link rel=prefetch href="TARGET"><script>
const tried = [];
const blind = address => fetch(address, {mode: "no-cors"});
tried.push(blind("TARGET"), blind("DECIMAL"), blind("/redirect"));
navigator.sendBeacon("TARGET", "x");
tried.push(new Promise(end => { new WebSocket("ws://HOST/secret").onclose = end; }));
tried.push(new Promise(end => { new EventSource("TARGET").onerror = end; }));
const code = `fetch("TARGET", {mode: "no-cors"}).finally(() => postMessage(1))`;
const worker = new Worker(URL.createObjectURL(new Blob([code])));
tried.push(new Promise(end => { worker.onmessage = end; }));
Promise.allSettled(tried).then(() => { document.getElementById("done").textContent = "tried all"; });
</script>"""


async def test_no_page_can_make_the_browser_touch_this_machine(
    bench: Workbench, site: Site, canary: Site
) -> None:
    target = canary.url("/secret")
    probes = PROBES.replace("TARGET", target).replace("HOST", canary.host)
    site.pages |= {
        "/redirect": redirect(target),
        "/script": page(probes.replace("DECIMAL", target.replace("127.0.0.1", "2130706433"))),
        "/meta": page(f"<meta http-equiv=refresh content='0;url={target}'><p>moving</p>"),
    }
    seen = await text(bench, "browser_navigate", url=site.url("/script"))
    await shown(bench, "tried all")
    seen += await text(bench, "browser_snapshot")
    assert "refused: the URL" in seen
    await call(bench, "browser_navigate", url=site.url("/meta"))
    kind, message = await error(bench, "browser_navigate", url=site.url("/redirect"))
    assert kind == "refused" and "not a public address" in message
    assert canary.requests == []


PEER = """<p id=done>waiting</p><script>
const peer = new RTCPeerConnection({iceServers: [{urls: "stun:127.0.0.1:PORT"}]});
peer.onicegatheringstatechange = () => {
  if (peer.iceGatheringState === "complete") document.getElementById("done").textContent = "gathered";
};
peer.createDataChannel("x");
peer.createOffer().then(offer => peer.setLocalDescription(offer));
</script>"""


async def test_peer_connections_do_not_go_past_the_proxy(bench: Workbench, site: Site) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as canary:
        canary.bind(("127.0.0.1", 0))
        canary.setblocking(False)
        site.pages["/peer"] = page(PEER.replace("PORT", str(canary.getsockname()[1])))
        await text(bench, "browser_navigate", url=site.url("/peer"))
        await shown(bench, "gathered")
        with pytest.raises(BlockingIOError):
            canary.recv(100)


async def test_downloads_are_refused(bench: Workbench, site: Site) -> None:
    _, message = await error(bench, "browser_navigate", url=site.url("/file"))
    assert "ERR_ABORTED" in message or "Download" in message
    assert not [path for path in Path(bench.sandbox.workspace).rglob("*") if path.is_file()]


async def test_calls_made_at_once_take_turns_on_one_page(bench: Workbench, site: Site) -> None:
    first, second = await asyncio.gather(
        text(bench, "browser_navigate", url=site.url("/")),
        text(bench, "browser_navigate", url=site.url("/tall")),
    )
    assert "title: Order" in first and "title: Tall" in second


async def test_a_crashed_page_is_replaced_by_a_fresh_browser(tmp_path: Path, site: Site) -> None:
    async with open_service_bench(tmp_path, {"web.allow_hosts": [site.host]}) as bench:
        await text(bench, "browser_navigate", url=site.url("/"))
        crashed = asyncio.get_running_loop().create_future()
        session_of(bench).page.on("crash", lambda page: crashed.set_result(page))
        visit = asyncio.create_task(session_of(bench).page.goto("chrome://crash"))
        await asyncio.wait({visit, crashed}, return_when=asyncio.ALL_COMPLETED)
        assert visit.exception() is not None
        assert "title: Order" in await text(bench, "browser_navigate", url=site.url("/"))


async def test_a_fresh_browser_has_no_history_and_ends_with_the_bench(tmp_path: Path) -> None:
    async with open_service_bench(tmp_path) as bench:
        _, message = await error(bench, "browser_back")
        assert "no earlier page" in message
        session = session_of(bench)
        assert session.alive
    assert not session.alive
