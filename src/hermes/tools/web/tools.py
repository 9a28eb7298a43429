"""web_search and web_extract: find pages, and read them as text.

Pages are fetched through `safety.fetch`, so an address chosen by the model or a page can never be on this
machine or its private network unless the user allowed that host. Nothing on a page is executed.

The search engines behind `web_search` are a SearXNG instance, Brave and Tavily. Each is one function from a
query to hits. The addresses are the user's configuration or constants here, never the model's choice, so SSRF
protection does not apply: a SearXNG on this machine is fine.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, cast

from hermes.core import JSON, JSONObject
from hermes.errors import HermesError, ToolError
from hermes.safety.text import clip
from hermes.tools.base import Tool, Workbench, object_schema

if TYPE_CHECKING:
    from hermes.config.settings import Settings, WebSettings
    from hermes.safety.fetch import FetchedPage


BRAVE_URL = "https://api.search.brave.com/res/v1"
TAVILY_URL = "https://api.tavily.com"
TIMEOUT_S = 30.0
KEYS = {"brave": "BRAVE_API_KEY", "tavily": "TAVILY_API_KEY"}


@dataclass(frozen=True, slots=True)
class WebSearchHit:
    title: str
    url: str
    snippet: str

    def to_json(self) -> JSONObject:
        return asdict(self)


def choose_backend(web: WebSettings, environ: Mapping[str, str]) -> str:
    """The configured back end, or with 'auto' the first that is set up; ToolError if there is none."""
    ready = {"searxng": bool(web.searxng_url), **{name: bool(environ.get(key)) for name, key in KEYS.items()}}
    backend = web.search_backend
    if backend == "auto":
        for name, usable in ready.items():
            if usable:
                return name
        raise ToolError(
            "no search engine is set up.", f"Set web.searxng_url, or {' or '.join(KEYS.values())}."
        )
    if ready[backend]:
        return backend
    raise ToolError(
        f"the search engine '{backend}' is not set up.", f"Set {KEYS.get(backend, 'web.searxng_url')}."
    )


async def search(query: str, limit: int, web: WebSettings, environ: Mapping[str, str]) -> list[WebSearchHit]:
    match choose_backend(web, environ):
        case "searxng":
            hits = await search_searxng(query, base_url=web.searxng_url or "")
        case "brave":
            hits = await search_brave(query, limit, environ[KEYS["brave"]])
        case _:
            hits = await search_tavily(query, limit, environ[KEYS["tavily"]])
    return hits[:limit]


async def search_searxng(query: str, *, base_url: str) -> list[WebSearchHit]:
    url = f"{base_url.rstrip('/')}/search"
    hint = "SearXNG answers in JSON only if its settings.yml lists 'json' under search.formats."
    data = await _request("GET", url, hint, params={"q": query, "format": "json"})
    return _hits(data.get("results"), "content")


async def search_brave(query: str, limit: int, key: str, *, base_url: str = BRAVE_URL) -> list[WebSearchHit]:
    data = await _request(
        "GET",
        f"{base_url}/web/search",
        f"Check {KEYS['brave']}.",
        params={"q": query, "count": str(limit)},
        headers={"X-Subscription-Token": key, "Accept": "application/json"},
    )
    return _hits((data.get("web") or {}).get("results"), "description")


async def search_tavily(
    query: str, limit: int, key: str, *, base_url: str = TAVILY_URL
) -> list[WebSearchHit]:
    data = await _request(
        "POST",
        f"{base_url}/search",
        f"Check {KEYS['tavily']}.",
        body={"query": query, "max_results": limit},
        headers={"Authorization": f"Bearer {key}"},
    )
    return _hits(data.get("results"), "content")


async def _request(
    method: str,
    url: str,
    hint: str,
    *,
    params: Mapping[str, str] | None = None,
    body: JSON = None,
    headers: Mapping[str, str] | None = None,
) -> JSONObject:
    import httpx2

    try:
        async with httpx2.AsyncClient(timeout=TIMEOUT_S) as client:
            response = await client.request(method, url, params=params, json=body, headers=headers)
        if response.status_code != 200:
            detail = clip(response.text, 300)
            raise ToolError(f"the search engine at {url} answered {response.status_code}: {detail}", hint)
        data = response.json()
    except httpx2.HTTPError as error:
        reason = f"{type(error).__name__}: {error}"
        raise ToolError(f"the search engine at {url} cannot be reached ({reason}).") from error
    except ValueError as error:
        raise ToolError(f"the search engine at {url} did not answer with JSON.", hint) from error
    if not isinstance(data, dict):
        raise ToolError(f"the search engine at {url} answered with JSON of another shape.")
    return data


def _hits(results: JSON, snippet: str) -> list[WebSearchHit]:
    entries = results if isinstance(results, list) else []
    return [
        WebSearchHit(str(entry.get("title") or ""), str(entry["url"]), str(entry.get(snippet) or ""))
        for entry in entries
        if isinstance(entry, dict) and entry.get("url")
    ]


MAX_URLS = 5
MAX_HITS = 20
FETCH_TIMEOUT_S = 30.0
_TEXT_TYPES = ("application/json", "application/xml", "application/javascript", "application/x-yaml")
_HTML_TYPES = ("text/html", "application/xhtml+xml")


async def web_search(arguments: JSONObject, bench: Workbench) -> str:
    environ = cast("Mapping[str, str]", bench.resources["environ"])
    hits = await search(arguments["query"], arguments.get("limit", 5), bench.settings.web, environ)
    return json.dumps([hit.to_json() for hit in hits], ensure_ascii=False)


async def web_extract(arguments: JSONObject, bench: Workbench) -> str:
    pages = await asyncio.gather(*(_page(url, bench.settings) for url in arguments["urls"]))
    return json.dumps(pages, ensure_ascii=False)


async def _page(url: str, settings: Settings) -> JSONObject:
    """One page, or its error: a page that fails does not hide the others."""
    from hermes.safety.fetch import fetch

    try:
        fetched = await fetch(
            url,
            allow_hosts=settings.web.allow_hosts,
            max_bytes=settings.web.max_bytes,
            timeout_s=FETCH_TIMEOUT_S,
        )
        if fetched.status >= 400:
            raise ToolError(f"the server answered {fetched.status}.")
        title, content = await asyncio.to_thread(readable, fetched)
    except HermesError as error:
        return {"url": url, "error": error.message}
    return {"url": fetched.url, "title": title, "content": content}


def readable(fetched: FetchedPage) -> tuple[str, str]:
    """Title and text: HTML reduced to its content as Markdown, other text as it is."""
    media_type, _, parameters = fetched.content_type.partition(";")
    kind = media_type.strip().lower()
    if kind in _HTML_TYPES:
        return _html(fetched, parameters)
    if kind.startswith("text/") or kind in _TEXT_TYPES or kind.endswith(("+json", "+xml")):
        return "", _decode(fetched.body, parameters)
    raise ToolError(f"is '{kind or 'of unknown type'}', which cannot be read as text.")


def _html(fetched: FetchedPage, parameters: str) -> tuple[str, str]:
    import trafilatura
    from trafilatura.utils import decode_file

    html = _decode(fetched.body, parameters) if "charset" in parameters else decode_file(fetched.body)
    title = trafilatura.extract_metadata(html, default_url=fetched.url).title or ""
    content = trafilatura.extract(
        html, url=fetched.url, output_format="markdown", include_links=True, include_comments=False
    )
    # Pages without an article (listings, forms) have no main content: return all visible text.
    return title, content or trafilatura.html2txt(html)


def _decode(body: bytes, parameters: str) -> str:
    for parameter in parameters.split(";"):
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "charset":
            try:
                return body.decode(value.strip().strip("\"'"), "replace")
            except (LookupError, UnicodeError):
                break  # the declared charset is not an encoding
    return body.decode("utf-8", "replace")


def _search_unavailable(settings: Settings, environ: Mapping[str, str]) -> str | None:
    try:
        choose_backend(settings.web, environ)
    except ToolError as error:
        return f"{error.message} {error.hint}"
    return None


TOOLS: tuple[Tool, ...] = (
    Tool(
        name="web_search",
        toolset="web",
        description="Search the web. Returns a JSON list of {title, url, snippet}, best first.",
        parameters=object_schema(
            "query",
            query={"type": "string", "minLength": 1, "description": "What to search for."},
            limit={"type": "integer", "minimum": 1, "maximum": MAX_HITS, "default": 5},
        ),
        handler=web_search,
        stateless=True,
        unavailable=_search_unavailable,
    ),
    Tool(
        name="web_extract",
        toolset="web",
        description="Read web pages as text. Returns a JSON list of {url, title, content} or {url, error}.",
        parameters=object_schema(
            "urls",
            urls={
                "type": "array",
                "items": {"type": "string"},
                "minItems": 1,
                "maxItems": MAX_URLS,
                "description": "Addresses (http or https) of the pages.",
            },
        ),
        handler=web_extract,
        stateless=True,
    ),
)
