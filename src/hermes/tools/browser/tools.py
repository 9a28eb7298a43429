"""Browser tools: open a page, read it as an outline with [ref=…] marks, and act on marked elements.

The outline is the page's accessibility tree in Playwright's format. A ref is valid until the page changes;
using a stale one is an error. `browser.proxy` decides which addresses the browser may access.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, TypeVar

from hermes.core import JSONObject
from hermes.errors import ToolError
from hermes.safety.text import clip
from hermes.tools.base import Tool, Workbench, object_schema
from hermes.tools.browser.proxy import PROXY_HEADER
from hermes.tools.browser.session import BrowserSession, browser_lock, browser_session, find_browser

if TYPE_CHECKING:
    from playwright.async_api import Locator, Response

    from hermes.config.settings import Settings

MAX_SNAPSHOT_CHARS = 40_000
MAX_IMAGES = 100
SETTLE_S = 0.3

T = TypeVar("T")
Action = Callable[[JSONObject, BrowserSession], Awaitable[str]]

_IMAGES_SCRIPT = """limit => [...document.images].slice(0, limit).map(image => ({
  src: image.currentSrc.slice(0, 500), alt: image.alt, width: image.naturalWidth, height: image.naturalHeight
}))"""
_SCROLL_SCRIPT = """direction => {
  const step = window.innerHeight * 0.8;
  window.scrollBy({top: direction === "down" ? step : -step, behavior: "instant"});
  return [Math.round(window.scrollY), Math.round(document.documentElement.scrollHeight - window.innerHeight)];
}"""


async def _navigate(arguments: JSONObject, session: BrowserSession) -> str:
    url = arguments["url"]
    if not url.lower().startswith(("http://", "https://")):
        raise ToolError(f"'{url}' is not an http or https address.", kind="bad_arguments")
    response = await _retry_after_navigation(
        session, lambda: session.page.goto(url, wait_until="domcontentloaded")
    )
    return await _navigation_result(response, session)


async def _back(arguments: JSONObject, session: BrowserSession) -> str:
    response = await session.page.go_back(wait_until="domcontentloaded")
    if response is None:
        raise ToolError("there is no earlier page to go back to.")
    return await _navigation_result(response, session)


async def _snapshot(arguments: JSONObject, session: BrowserSession) -> str:
    outline = await _retry_after_navigation(session, lambda: session.page.aria_snapshot(mode="ai"))
    return f"{await _page_header(session)}\n\n{clip(outline, MAX_SNAPSHOT_CHARS)}"


async def _click(arguments: JSONObject, session: BrowserSession) -> str:
    await (await _element(arguments["ref"], session)).click()
    return await _wait_until_settled(session)


async def _type(arguments: JSONObject, session: BrowserSession) -> str:
    element = await _element(arguments["ref"], session)
    if await element.evaluate("element => element.tagName") == "SELECT":
        await element.select_option(arguments["text"])
    else:
        await element.fill(arguments["text"])
    if arguments.get("submit"):
        await element.press("Enter")
    return await _wait_until_settled(session)


async def _press(arguments: JSONObject, session: BrowserSession) -> str:
    await session.page.keyboard.press(arguments["key"])
    return await _wait_until_settled(session)


async def _scroll(arguments: JSONObject, session: BrowserSession) -> str:
    position, end = await session.page.evaluate(_SCROLL_SCRIPT, arguments["direction"])
    return f"at {position} of {max(end, 0)} pixels"


async def _get_images(arguments: JSONObject, session: BrowserSession) -> str:
    images = await session.page.evaluate(_IMAGES_SCRIPT, MAX_IMAGES)
    return json.dumps(images, ensure_ascii=False)


async def _console(arguments: JSONObject, session: BrowserSession) -> str:
    return "\n".join(session.console) or "the console is empty."


async def _navigation_result(response: Response | None, session: BrowserSession) -> str:
    """The page after a navigation; ToolError if the proxy sent the response."""
    if response is not None and response.url.startswith("http:") and PROXY_HEADER in response.headers:
        refusals = session.proxy.take_refusals()
        if response.status == 403 and refusals:  # not the browser's text, which may no longer be available
            raise ToolError(refusals[0], kind="refused")
        raise ToolError(await response.text())
    return await _snapshot({}, session)


async def _wait_until_settled(session: BrowserSession) -> str:
    # An action may start a navigation a moment later; the model needs the page after it.
    await asyncio.sleep(SETTLE_S)
    await session.page.wait_for_load_state("domcontentloaded")
    return await _page_header(session)


async def _page_header(session: BrowserSession) -> str:
    title = await _retry_after_navigation(session, lambda: session.page.title())
    lines = [f"url: {session.page.url}", f"title: {title}"]
    lines += [f"refused: {reason}" for reason in session.proxy.take_refusals()]
    return "\n".join(lines)


async def _element(ref: str, session: BrowserSession) -> Locator:
    element = session.page.locator(f"aria-ref={ref}")
    if await element.count() != 1:
        raise ToolError(f"the page has no element '{ref}' now; take a new browser_snapshot.")
    return element


async def _retry_after_navigation(session: BrowserSession, step: Callable[[], Awaitable[T]]) -> T:
    """Runs a read-only step, and repeats it if the page was navigating."""
    from playwright.async_api import Error

    try:
        return await step()
    except Error as error:
        if "navigation" not in error.message:
            raise
        await session.page.wait_for_load_state("domcontentloaded")
        return await step()


_REFUSED = ("ERR_TUNNEL_CONNECTION_FAILED", "interrupted by another navigation")
"""The browser's errors after the proxy's 403: for a tunnel, and for a page that it reloads."""


async def _run(action: Action, arguments: JSONObject, session: BrowserSession) -> str:
    from playwright.async_api import Error

    refusals = session.proxy.refusals
    try:
        return await action(arguments, session)
    except Error as error:
        if session.proxy.refusals > refusals and any(code in error.message for code in _REFUSED):
            raise ToolError(session.proxy.take_refusals()[-1], kind="refused") from error
        raise ToolError(f"the browser says: {clip(error.message, 500)}") from error


def _unavailable(settings: Settings, environ: Mapping[str, str]) -> str | None:
    if find_spec("playwright") is None:
        return "Playwright is not installed: pip install 'hermes-research[browser]'"
    if find_browser() is None:
        return "there is no Chromium on this machine: apt install chromium"
    return None


def _tool(
    name: str, description: str, action: Action, properties: JSONObject, optional: tuple[str, ...] = ()
) -> Tool:
    async def handler(arguments: JSONObject, bench: Workbench) -> str:
        async with browser_lock(bench):
            return await _run(action, arguments, await browser_session(bench))

    return Tool(
        name=name,
        toolset="browser",
        description=description,
        parameters=object_schema(*[key for key in properties if key not in optional], **properties),
        handler=handler,
        unavailable=_unavailable,
    )


_REF = {
    "type": "string",
    "pattern": "^(f[0-9]+)?e[0-9]+$",
    "description": "Mark of the element in the latest outline, such as e12.",
}
_TEXT = {"type": "string"}

TOOLS: tuple[Tool, ...] = (
    _tool(
        "browser_navigate",
        "Open a web page in the browser. Returns its outline, with [ref=…] marks to act on.",
        _navigate,
        {"url": {"type": "string", "description": "An http or https address."}},
    ),
    _tool(
        "browser_snapshot", "The outline of the page as it is now, with fresh [ref=…] marks.", _snapshot, {}
    ),
    _tool("browser_click", "Click an element.", _click, {"ref": _REF}),
    _tool(
        "browser_type",
        "Fill a text field, or choose an option of a list by its label or value.",
        _type,
        {"ref": _REF, "text": _TEXT, "submit": {"type": "boolean", "description": "Press Enter afterwards."}},
        optional=("submit",),
    ),
    _tool(
        "browser_scroll",
        "Scroll the page by most of a screen.",
        _scroll,
        {"direction": {"type": "string", "enum": ["up", "down"]}},
    ),
    _tool("browser_back", "Go back to the previous page. Returns its outline.", _back, {}),
    _tool(
        "browser_press",
        "Press a key, such as Enter, Escape, ArrowDown or Control+a.",
        _press,
        {"key": {"type": "string", "minLength": 1}},
    ),
    _tool("browser_get_images", "List the page's images: address, description, size.", _get_images, {}),
    _tool("browser_console", "What the page wrote to its console, errors included.", _console, {}),
)
