"""The pictures in the documentation, made from the same store and pages as the tests.

`make screenshots` writes them to docs/images.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.web.browsing import open_page
from tests.web.samples import fill
from tests.web.site import open_site
from tests.web.training import fill_runs

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PICTURES = {
    "trajectories": "/trajectories?q=tool_errors%3D0",
    "transcript": "/trajectories/{id}",
    "rate-pair": "/rate?mode=pair&trajectory={id}&other={sibling}",
    "run": "/runs/{run}",
}
FOLDER = os.environ.get("HERMES_SCREENSHOTS")


@pytest.mark.skipif(FOLDER is None, reason="make screenshots makes them")
@pytest.mark.parametrize("dark", [False, True])
def test_pictures(browser: Browser, tmp_path: Path, dark: bool) -> None:
    home = tmp_path / "home"
    ids = fill(home)
    run, _ = fill_runs(home)
    names = {"id": ids[5], "sibling": ids[4], "run": run}
    target = Path(FOLDER or tmp_path)
    target.mkdir(parents=True, exist_ok=True)
    with (
        open_site(home) as site,
        open_page(browser, site, width=1200, height=780, dark=dark) as (page, trouble),
    ):
        for name, path in PICTURES.items():
            page.goto(f"{site.url}{path.format(**names)}")
            page.wait_for_load_state("networkidle")
            path_to = target / f"web-{name}{'-dark' if dark else ''}.png"
            page.screenshot(path=str(path_to))
            assert path_to.stat().st_size > 20_000
        assert trouble.events == []
