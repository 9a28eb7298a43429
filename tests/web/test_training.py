"""Training from the browser, carried through: a real engine, real environments, a tiny model.

A run is started from the form, watched, followed from its curve to its rollouts, and stopped; its weights are
fetched. An environment is checked and one of its tasks is tried; locked fields stay as they are.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from hermes.rl.run import RunState, all_runs
from tests.rl.world import kill_runs, make_home, tiny_model
from tests.web.browsing import open_page
from tests.web.site import WebSite, open_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]
_PATIENCE_MS = 600_000


@pytest.fixture(scope="module")
def tiny_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebSite]:
    """A home that trains a random model of a few thousand parameters. What a test leaves running is ended."""
    root = tmp_path_factory.mktemp("training")
    home = make_home(root / "home", tiny_model(root / "model"), total_steps=500)
    try:
        with open_site(home) as site:
            yield site
    finally:
        kill_runs(home)


def finished_job(page: Page) -> str:
    """What the job on the page printed, once it has ended well."""
    page.wait_for_selector("#job .tag-good, #job .tag-bad", timeout=_PATIENCE_MS)
    output = page.inner_text("#job pre")
    assert page.locator("#job .tag-good").count() == 1, output
    return output


def test_a_run_is_started_watched_and_stopped_and_its_weights_are_fetched(
    browser: Browser, tiny_site: WebSite
) -> None:
    with open_page(browser, tiny_site) as (page, trouble):
        page.set_default_timeout(_PATIENCE_MS)
        page.goto(f"{tiny_site.url}/runs/new?environment=letters")
        page.check("[data-unlock]")
        page.fill('[name="field.env.group_size"]', "4")
        page.fill('[name="field.env.batch_size"]', "8")
        page.get_by_role("button", name="Start the run").click()
        assert "letters" in page.inner_text("main ul")
        page.get_by_role("button", name="Run it").click()
        page.wait_for_selector("#run-state, [role=alert], .message-page", timeout=_PATIENCE_MS)
        assert re.search(r"/runs/[0-9a-f]{8}$", page.url), page.inner_text("main")
        page.wait_for_selector(".panel.drawn", timeout=_PATIENCE_MS)
        grown = "step => Number(document.querySelector('#run-step').textContent) > step"
        page.wait_for_function(grown, arg=max(4, int(page.inner_text("#run-step"))), timeout=_PATIENCE_MS)
        page.locator('[data-panel="reward/mean"] .u-over').click()
        page.wait_for_selector("#rollouts li a")
        page.locator("#rollouts li a").first.click()
        page.wait_for_selector("article")
        assert "Say letters. Item" in page.inner_text("main")
        page.go_back()
        page.get_by_role("button", name="Stop").click()
        stopped = "() => document.querySelector('#run-state .tag').textContent === 'stopped'"
        page.wait_for_function(stopped, timeout=_PATIENCE_MS)
        page.reload()
        page.get_by_role("button", name="Fetch").first.click()
        assert "weights/step-" in finished_job(page)
        assert trouble.events == []
    (run,) = all_runs(tiny_site.home)
    assert run.status().state is RunState.STOPPED
    assert list(run.folder.glob("**/adapter_model.safetensors"))


def test_an_environment_is_checked_and_one_task_is_tried(browser: Browser, tiny_site: WebSite) -> None:
    with open_page(browser, tiny_site) as (page, trouble):
        page.set_default_timeout(_PATIENCE_MS)
        page.goto(f"{tiny_site.url}/environments")
        letters = page.locator(".card-item", has_text="LettersEnv")
        letters.get_by_role("button", name="Try one task").click()
        page.get_by_role("button", name="Run it").click()
        assert "reward" in finished_job(page)
        page.goto(f"{tiny_site.url}/environments")
        letters.get_by_role("button", name="Check").click()
        page.get_by_role("button", name="Run it").click()
        page.wait_for_selector("#job .tag-good, #job .tag-bad", timeout=_PATIENCE_MS)
        page.goto(f"{tiny_site.url}/environments")
        assert re.search(r"checked \w+", letters.inner_text())
        assert trouble.events == []


def test_a_preflight_keeps_the_locks(browser: Browser, tiny_site: WebSite) -> None:
    """A value of a locked field is refused, also from a program that sends what the form cannot."""
    with open_page(browser, tiny_site) as (page, trouble):
        page.set_default_timeout(_PATIENCE_MS)
        page.goto(f"{tiny_site.url}/runs/new?environment=letters")
        locked = page.locator("[data-locked]").first
        assert locked.is_disabled()
        page.get_by_role("button", name=re.compile("Preflight")).click()
        page.get_by_role("button", name="Run it").click()
        assert "groups" in finished_job(page)
        assert trouble.events == []
