"""A run started from the form, watched and stopped in the browser: real training on the bundled model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hermes.rl.run import RlRun, RunState, all_runs
from hermes.rl.start import stop
from tests.web.browsing import open_page
from tests.web.site import open_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_PATIENCE_MS = 900_000


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_start_watch_and_stop_a_run(browser: Browser, bundled_home: Path, tmp_path: Path) -> None:
    shutil.copytree(bundled_home / "models", tmp_path / "models")
    try:
        with open_site(tmp_path) as site, open_page(browser, site) as (page, trouble):
            page.goto(f"{site.url}/runs/new?environment=calculator")
            page.check("[data-unlock]")
            page.fill('[name="field.env.total_steps"]', "50")
            page.fill('[name="field.env.group_size"]', "4")
            page.fill('[name="field.env.batch_size"]', "8")
            page.get_by_role("button", name="Start the run").click()
            page.wait_for_url("**/runs/*", timeout=_PATIENCE_MS)
            page.wait_for_selector(".panel.drawn", timeout=_PATIENCE_MS)
            first = int(page.inner_text("#run-step"))
            grown = "step => Number(document.querySelector('#run-step').textContent) > step"
            page.wait_for_function(grown, arg=first, timeout=_PATIENCE_MS)
            page.get_by_role("button", name="Stop").click()
            page.wait_for_function(
                "() => document.querySelector('#run-state .tag').textContent === 'stopped'",
                timeout=_PATIENCE_MS,
            )
            assert trouble.events == []
        (run,) = all_runs(tmp_path)
        assert run.status().state is RunState.STOPPED
    finally:
        for run in all_runs(tmp_path):
            _end(run)


def _end(run: RlRun) -> None:
    if not run.status().state.ended:
        stop(run, now=True)
