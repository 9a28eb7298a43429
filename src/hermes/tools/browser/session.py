"""One headless Chromium per rollout: fresh profile, no downloads, network only through the proxy.

The browser is started at the first use and closed with the workbench. It has no access to the environment's
secrets and writes only to its own temporary directory.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import tempfile
from collections import deque
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, cast

from hermes.errors import MissingDependencyError, ToolError
from hermes.tools.base import Workbench
from hermes.tools.browser.proxy import GuardedProxy

if TYPE_CHECKING:
    from playwright.async_api import Browser, BrowserContext, ConsoleMessage, Page, WebError

RESOURCE = "browser"
ACTION_TIMEOUT_S = 10.0
NAVIGATION_TIMEOUT_S = 30.0
MAX_CONSOLE_LINES = 200
PROGRAMS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--no-first-run",
    "--disable-quic",
    # Peer connections would bypass the proxy. Older versions have the longer name of the switch.
    "--webrtc-ip-handling-policy=disable_non_proxied_udp",
    "--force-webrtc-ip-handling-policy=disable_non_proxied_udp",
)


def find_browser() -> str | None:
    return next((path for name in PROGRAMS if (path := shutil.which(name))), None)


class BrowserSession:
    """The current page of the tools, and its console."""

    def __init__(self, context: BrowserContext, page: Page, proxy: GuardedProxy) -> None:
        self.page = page
        self.proxy = proxy
        self.console: deque[str] = deque(maxlen=MAX_CONSOLE_LINES)
        context.set_default_timeout(ACTION_TIMEOUT_S * 1000)
        context.set_default_navigation_timeout(NAVIGATION_TIMEOUT_S * 1000)
        self._context = context
        self._crashed = False
        self._track_page(page)
        context.on("page", self._track_page)
        context.on("console", self._on_console)
        context.on("weberror", self._on_error)

    @property
    def alive(self) -> bool:
        browser = self._context.browser
        return (
            not self._crashed and not self.page.is_closed() and browser is not None and browser.is_connected()
        )

    def _track_page(self, page: Page) -> None:
        """A new window becomes the current page until it closes."""
        self.page = page
        page.on("crash", self._on_crash)
        page.on("close", self._on_close)

    def _on_crash(self, page: Page) -> None:
        self._crashed = True

    def _on_close(self, page: Page) -> None:
        if self.page is page and self._context.pages:
            self.page = self._context.pages[-1]

    def _on_console(self, message: ConsoleMessage) -> None:
        self.console.append(f"{message.type}: {message.text[:1000]}")

    def _on_error(self, error: WebError) -> None:
        self.console.append(f"uncaught: {str(error.error)[:1000]}")


async def browser_session(bench: Workbench) -> BrowserSession:
    """The rollout's browser, started if none is running. Callers hold the bench's browser lock."""
    session = cast("BrowserSession | None", bench.resources.get(RESOURCE))
    if session is None or not session.alive:
        async with AsyncExitStack() as stack:
            session = await _launch(bench, stack)
            bench.closers.append(stack.pop_all().aclose)
        bench.resources[RESOURCE] = session
    return session


def browser_lock(bench: Workbench) -> asyncio.Lock:
    """Serialises calls on one page, also if the model makes several at once."""
    return cast(asyncio.Lock, bench.resources.setdefault(f"{RESOURCE}_lock", asyncio.Lock()))


async def _close(browser: Browser) -> None:
    from playwright.async_api import Error

    with suppress(Error):  # it is already closed
        await browser.close()


async def _launch(bench: Workbench, stack: AsyncExitStack) -> BrowserSession:
    try:
        from playwright.async_api import Error, async_playwright
    except ModuleNotFoundError as error:
        raise MissingDependencyError("playwright", "browser", "The browser") from error

    program = find_browser()
    if program is None:
        raise ToolError(
            "there is no Chromium on this machine.", "Install it, for example: apt install chromium"
        )
    proxy = GuardedProxy(bench.settings.web.allow_hosts)
    stack.push_async_callback(proxy.close)
    address = await proxy.start()
    private = Path(
        stack.enter_context(tempfile.TemporaryDirectory(prefix="hermes-browser-", ignore_cleanup_errors=True))
    )
    playwright = await stack.enter_async_context(async_playwright())
    try:
        browser = await playwright.chromium.launch(
            executable_path=program,
            # Chromium's own sandbox cannot be used by root.
            chromium_sandbox=os.geteuid() != 0,
            proxy={"server": address},
            env={"PATH": os.environ.get("PATH", os.defpath), "HOME": str(private), "LANG": "C.UTF-8"},
            args=list(FLAGS),
        )
        stack.push_async_callback(_close, browser)
        context = await browser.new_context(accept_downloads=False, service_workers="block")
        page = await context.new_page()
    except Error as error:
        raise ToolError(f"the browser could not be started: {error.message}") from error
    return BrowserSession(context, page, proxy)
