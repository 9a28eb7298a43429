"""Search engines behind `web_search`: a SearXNG instance, Brave, Tavily.

Each is one function from a query to hits. The addresses are the user's configuration or constants here, never
the model's choice, so SSRF protection does not apply: a SearXNG on this machine is fine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from hermes.core import JSON, JSONObject
from hermes.errors import ToolError
from hermes.safety.text import clip

if TYPE_CHECKING:
    from hermes.config.settings import WebSettings

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
