"""web_search and web_extract: find pages, and read them as text.

Pages are fetched through `safety.fetch`, so an address chosen by the model or a page can never be on this
machine or its private network unless the user allowed that host. Nothing on a page is executed.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from hermes.core import JSONObject
from hermes.errors import HermesError, ToolError
from hermes.tools.base import Tool, Workbench, object_schema
from hermes.tools.web.search import choose_backend, search

if TYPE_CHECKING:
    from hermes.config.settings import Settings
    from hermes.safety.fetch import FetchedPage

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
