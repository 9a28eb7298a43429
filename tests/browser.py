"""Debian's Chromium, driven by Playwright; tests that need it skip where it is not installed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser

CHROMIUM = Path("/usr/bin/chromium")


@contextmanager
def chromium() -> Iterator[Browser]:
    playwright: Any = pytest.importorskip(
        "playwright.sync_api", reason="the package playwright is not installed"
    )
    if not CHROMIUM.exists():
        pytest.skip("chromium is not installed: apt install chromium")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(
            executable_path=str(CHROMIUM), args=["--no-sandbox", "--disable-gpu"]
        )
        yield browser
        browser.close()
