"""What the browser tests share: a page that records what went wrong on it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tests.web.site import WebSite

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

WIDTHS = (390, 1024, 1600)
PAGES = (
    "/",
    "/trajectories",
    "/trajectories?q=pytest+reward%3E0.1",
    "/trajectories/{id}",
    "/trajectories/{id}?find=line",
    "/trajectories/{id}/steps/2",
    "/trajectories/{id}/steps/2/tokens",
    "/compare?id={id}&id={sibling}",
    "/rate",
    "/rate?mode=score",
    "/rate?mode=pair",
    "/rate?mode=step",
    "/rate/rows",
    "/runs",
    "/runs/{run}",
    "/runs/{run}/steps/3",
    "/runs/diff?id={run}&id={other_run}",
    "/runs/new",
    "/batches",
    "/batches/batch-1",
    "/environments",
    "/policies",
    "/datasets?preview=1",
    "/skills",
    "/skills/axolotl",
)
"""Every page; names in braces are filled in by the test."""

LEAST_VISIBLE_SHIFT = 0.01
"""A tenth of what is called a good score."""
_SUM_OF_SHIFTS = """new Promise(done => {
  let total = 0;
  const add = list => {
    for (const entry of list.getEntries()) if (!entry.hadRecentInput) total += entry.value;
  };
  new PerformanceObserver(add).observe({type: "layout-shift", buffered: true});
  setTimeout(() => done(total), 200);
})"""


@dataclass
class Trouble:
    """Dialogs, console errors, failed scripts and requests that left the site."""

    events: list[str] = field(default_factory=list)


@contextmanager
def open_page(
    browser: Browser,
    site: WebSite,
    *,
    width: int = 1024,
    height: int = 900,
    dark: bool = False,
    rater: str = "",
) -> Iterator[tuple[Page, Trouble]]:
    """`rater`: the name that the page rates by; otherwise that of the account."""
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if dark else "light"
    )
    if rater:
        context.add_cookies([{"name": "hermes_rater", "value": rater, "url": site.url}])
    page = context.new_page()
    page.set_default_timeout(90_000)
    trouble = Trouble()

    def on_dialog(dialog: object) -> None:
        trouble.events.append("dialog")
        dialog.dismiss()  # type: ignore[attr-defined]

    page.on("dialog", on_dialog)
    page.on("pageerror", lambda error: trouble.events.append(f"script: {error}"))
    page.on("console", lambda line: trouble.events.append(line.text) if line.type == "error" else None)
    context.on(
        "request",
        lambda sent: (
            None
            if sent.url.startswith((f"{site.url}/", "data:"))
            else trouble.events.append(f"request to {sent.url[:200]}")
        ),
    )
    try:
        yield page, trouble
    finally:
        context.close()


def layout_shift(page: Page) -> float:
    """How far visible parts of the page moved by themselves since it was loaded: Chromium's score."""
    shift: float = page.evaluate(_SUM_OF_SHIFTS)
    return shift


def overflow(page: Page) -> int:
    """How many pixels the page is wider than its window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))
