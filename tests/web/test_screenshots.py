"""The pictures in the documentation, made by the code of the tests.

`make screenshots` writes them to docs/images. The run in them is a real one, trained for this: a random model
of a few thousand parameters learns to say letters with an even code. The trajectories are those of the other
tests.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hermes.rl.run import RlRun
from tests.rl.world import answer, make_home, tiny_model
from tests.waiting import wait_until
from tests.web.browsing import open_page
from tests.web.samples import fill
from tests.web.site import WebSite, open_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PICTURES = {
    "trajectories": "/trajectories?q=run~batch",
    "transcript": "/trajectories/{id}",
    "rate-pair": "/rate?mode=pair&trajectory={id}&other={sibling}",
    "run": "/runs/{run}",
}
FOLDER = os.environ.get("HERMES_SCREENSHOTS")
_STEPS = 60
_NAMED = ("--name", "even-letters", "--note", "Does it learn to say letters with an even code?")
_PATIENCE_S = 1500

pytestmark = [
    pytest.mark.skipif(FOLDER is None, reason="make screenshots makes them"),
    pytest.mark.timeout(_PATIENCE_S + 300),
]


@pytest.fixture(scope="module")
def pictured(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WebSite, dict[str, str]]]:
    root = tmp_path_factory.mktemp("pictures")
    fields = {"total_steps": _STEPS, "save_checkpoint_interval": 20}
    home = make_home(root / "home", tiny_model(root / "tiny-llama"), **fields)
    ids = fill(home)
    run = RlRun(home, answer(home, "rl", "start", "--env", "letters", *_NAMED)["run_id"])
    wait_until(lambda: run.status().state.ended)
    assert run.status().state.value == "completed", run.status().reason
    with open_site(home) as site:
        yield site, {"id": ids[5], "sibling": ids[4], "run": run.run_id}


@pytest.mark.parametrize("dark", [False, True])
def test_pictures(browser: Browser, pictured: tuple[WebSite, dict[str, str]], dark: bool) -> None:
    site, names = pictured
    target = Path(FOLDER or site.home)
    target.mkdir(parents=True, exist_ok=True)
    with open_page(browser, site, width=1200, height=780, dark=dark) as (page, trouble):
        for name, path in PICTURES.items():
            page.goto(f"{site.url}{path.format(**names)}")
            page.wait_for_load_state("networkidle")
            path_to = target / f"web-{name}{'-dark' if dark else ''}.png"
            page.screenshot(path=str(path_to))
            assert path_to.stat().st_size > 20_000
        assert trouble.events == []
