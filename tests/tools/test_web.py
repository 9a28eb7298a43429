"""web_extract and web_search against real servers on loopback."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from hermes.config.settings import WebSettings
from hermes.core import JSON
from hermes.errors import ToolError
from hermes.tools.web.tools import WebSearchHit, choose_backend, search_brave, search_tavily
from tests.fakes.site import Page, Site, page, redirect
from tests.tools.bench import error, text
from tests.tools.services import open_service_bench

ARTICLE = """<!doctype html><html><head><title>On Glazes</title></head><body>
<nav><a href="/">Home</a> <a href="/shop">Buy our pots</a></nav>
<article><h1>On Glazes</h1>
<p>A glaze is a layer of glass that is fused to a pot by firing, and it makes the pot watertight.</p>
<p>Cobalt gives a deep blue colour, as told in <a href="/blue">the history of blue</a> at some length.</p>
<ul><li>Celadon comes from iron fired without oxygen.</li></ul></article>
<script>alert("never run")</script></body></html>"""


@pytest.fixture
def site() -> Iterator[Site]:
    pages = {
        "/article": Page(ARTICLE.encode(), "text/html; charset=utf-8"),
        "/moved": redirect("/article"),
        "/data.json": Page(b'{"cone": 10}', "application/json"),
        "/feed": Page(b"<feed/>", "application/atom+xml"),
        "/latin": Page("Töpfer".encode("latin-1"), "text/plain; charset=ISO-8859-1"),
        "/latin.html": Page("<title>Töpfe</title><p>Fünf Töpfe für Bücher".encode("latin-1"), "text/html"),
        "/odd": Page(b"plain", "text/plain; charset=hex"),
        "/list": page("<p>one</p>"),
        "/photo": Page(b"\x89PNG", "image/png"),
        "/untyped": Page(b"x", ""),
        "/large": Page(b"x" * 200_000, "text/plain"),
        "/gone": page("<p>nothing</p>", 410),
    }
    with Site(pages) as running:
        yield running


async def extract(tmp_path: Path, site: Site, *paths: str, **settings: JSON) -> list[dict[str, str]]:
    known = {"web.allow_hosts": [site.host], "web.max_bytes": 100_000, **settings}
    async with open_service_bench(tmp_path, known) as bench:
        return json.loads(await text(bench, "web_extract", urls=[site.url(path) for path in paths]))


async def test_an_article_is_read_as_markdown_without_what_surrounds_it(tmp_path: Path, site: Site) -> None:
    (read,) = await extract(tmp_path, site, "/moved")
    assert (read["url"], read["title"]) == (site.url("/article"), "On Glazes")
    assert "Cobalt gives a deep blue colour" in read["content"]
    assert "- Celadon" in read["content"]
    assert "[the history of blue]" in read["content"]
    assert "Buy our pots" not in read["content"] and "never run" not in read["content"]


async def test_a_page_without_an_article_gives_all_its_text(tmp_path: Path, site: Site) -> None:
    assert [read["content"] for read in await extract(tmp_path, site, "/list")] == ["one"]


async def test_a_page_that_does_not_name_its_encoding_is_still_read(tmp_path: Path, site: Site) -> None:
    (read,) = await extract(tmp_path, site, "/latin.html")
    assert (read["title"], read["content"]) == ("Töpfe", "Fünf Töpfe für Bücher")


async def test_other_text_is_returned_as_it_is(tmp_path: Path, site: Site) -> None:
    read = await extract(tmp_path, site, "/data.json", "/feed", "/latin", "/odd")
    assert [entry["content"] for entry in read] == ['{"cone": 10}', "<feed/>", "Töpfer", "plain"]


async def test_a_page_that_fails_does_not_hide_the_others(tmp_path: Path, site: Site) -> None:
    read = await extract(tmp_path, site, "/gone", "/photo", "/untyped", "/large", "/data.json")
    assert [set(entry) for entry in read] == [{"url", "error"}] * 4 + [{"url", "title", "content"}]
    assert "answered 410" in read[0]["error"]
    assert "'image/png'" in read[1]["error"]
    assert "unknown type" in read[2]["error"]
    assert read[3]["url"] == site.url("/large")


async def test_a_private_address_is_refused_without_a_connection(tmp_path: Path, site: Site) -> None:
    async with open_service_bench(tmp_path) as bench:
        (read,) = json.loads(await text(bench, "web_extract", urls=[site.url("/article")]))
    assert "not a public address" in read["error"]
    assert site.requests == []


async def test_a_redirect_to_a_private_address_is_refused(tmp_path: Path, site: Site) -> None:
    with Site({"/": redirect(site.url("/article"))}) as public:
        (read,) = await extract(tmp_path, public, "/")
    assert "not a public address" in read["error"]
    assert site.requests == []


@pytest.mark.parametrize("urls", [[], ["http://a"] * 6, "http://a", [1]])
async def test_one_to_five_addresses_are_taken(tmp_path: Path, urls: JSON) -> None:
    async with open_service_bench(tmp_path) as bench:
        assert (await error(bench, "web_extract", urls=urls))[0] == "bad_arguments"


def results(key: str, count: int) -> list[dict[str, str]]:
    return [{"title": f"T{n}", "url": f"https://e.org/{n}", key: f"S{n}"} for n in range(count)]


def as_json(data: JSON, status: int = 200) -> Page:
    return Page(json.dumps(data).encode(), "application/json", status)


async def test_searxng_is_asked_for_json_and_its_hits_are_limited(tmp_path: Path) -> None:
    pages = {"/searx/search": as_json({"results": [{"title": "no address"}, *results("content", 9)]})}
    with Site(pages) as site:
        async with open_service_bench(tmp_path, {"web.searxng_url": site.url("/searx/")}) as bench:
            hits = json.loads(await text(bench, "web_search", query="blue & white", limit=2))
    assert hits == [{"title": f"T{n}", "url": f"https://e.org/{n}", "snippet": f"S{n}"} for n in range(2)]
    assert site.paths == ["/searx/search?q=blue+%26+white&format=json"]


async def test_brave_is_asked_with_its_key_and_its_hits_are_mapped() -> None:
    with Site({"/web/search": as_json({"web": {"results": results("description", 2)}})}) as site:
        hits = await search_brave("clay", 2, "secret-key", base_url=site.url("").rstrip("/"))
    assert hits == [WebSearchHit("T0", "https://e.org/0", "S0"), WebSearchHit("T1", "https://e.org/1", "S1")]
    (request,) = site.requests
    assert request.path == "/web/search?q=clay&count=2"
    assert request.headers["x-subscription-token"] == "secret-key"


async def test_brave_without_web_results_is_no_hits() -> None:
    with Site({"/web/search": as_json({"query": {}})}) as site:
        assert await search_brave("clay", 2, "key", base_url=site.url("").rstrip("/")) == []


async def test_tavily_is_asked_with_its_key_and_its_hits_are_mapped() -> None:
    with Site({"/search": as_json({"results": results("content", 1)})}) as site:
        hits = await search_tavily("clay", 3, "secret-key", base_url=site.url("").rstrip("/"))
    assert hits == [WebSearchHit("T0", "https://e.org/0", "S0")]
    (request,) = site.requests
    assert (request.method, json.loads(request.body)) == ("POST", {"query": "clay", "max_results": 3})
    assert request.headers["authorization"] == "Bearer secret-key"


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        (as_json({"error": "format"}, 403), "answered 403"),
        (Page(b"<html>", "text/html"), "did not answer with JSON"),
        (as_json([1]), "another shape"),
    ],
)
async def test_a_search_engine_that_fails_is_a_clear_error(answer: Page, reason: str) -> None:
    with Site({"/search": answer}) as site, pytest.raises(ToolError, match=reason) as caught:
        await search_tavily("clay", 3, "secret-key", base_url=site.url("").rstrip("/"))
    assert "secret-key" not in caught.value.message


async def test_a_search_engine_that_is_not_there_is_a_clear_error(tmp_path: Path) -> None:
    with Site() as site:
        address = site.url("/")
    async with open_service_bench(tmp_path, {"web.searxng_url": address}) as bench:
        kind, message = await error(bench, "web_search", query="clay")
    assert kind == "failed" and "cannot be reached" in message


def test_the_first_engine_that_is_set_up_is_chosen() -> None:
    both = {"BRAVE_API_KEY": "b", "TAVILY_API_KEY": "t"}
    assert choose_backend(WebSettings(searxng_url="http://s"), both) == "searxng"
    assert choose_backend(WebSettings(), both) == "brave"
    assert choose_backend(WebSettings(), {"TAVILY_API_KEY": "t"}) == "tavily"
    assert choose_backend(WebSettings(search_backend="tavily"), both) == "tavily"


@pytest.mark.parametrize(
    ("settings", "fix"),
    [
        (WebSettings(), "Set web.searxng_url, or BRAVE_API_KEY or TAVILY_API_KEY."),
        (WebSettings(search_backend="brave"), "Set BRAVE_API_KEY."),
        (WebSettings(search_backend="searxng"), "Set web.searxng_url."),
    ],
)
def test_an_engine_that_is_not_set_up_says_what_to_set(settings: WebSettings, fix: str) -> None:
    with pytest.raises(ToolError) as caught:
        choose_backend(settings, {})
    assert caught.value.hint == fix
