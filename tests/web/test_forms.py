"""Forms as a browser sends them, with and without JavaScript: what a click changes is changed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hermes.config.paths import db_path
from hermes.rl.run import RunState
from hermes.store import Reader
from hermes.training.policy_registry import BASE_ID, PolicyRecord, PolicyRegistry
from tests.web.browsing import PAGES, open_page
from tests.web.samples import fill, keep_adapter
from tests.web.site import WebSite, open_site
from tests.web.training import fill_runs, make_run

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@pytest.fixture(scope="module")
def full_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WebSite, dict[str, str]]]:
    home = tmp_path_factory.mktemp("forms") / "home"
    ids = fill(home, 16)
    run, other_run = fill_runs(home)
    make_run(home, "11223344", "calculator", 30, RunState.PENDING)
    registry = PolicyRegistry(home)
    registry.add(PolicyRecord("01POLICYA", "hermes/smollm2", "tinker://a", "tinker://a", decision="better"))
    registry.add(PolicyRecord("01POLICYB", "hermes/smollm2", "tinker://b", "tinker://b", parent="01POLICYA"))
    for name in ("01POLICYA", "01POLICYB"):
        keep_adapter(home, name)
    with open_site(home) as site:
        yield site, {"id": ids[5], "sibling": ids[4], "run": run, "other_run": other_run}


@contextmanager
def page_without_script(browser: Browser) -> Iterator[Page]:
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.set_default_timeout(90_000)
    try:
        yield page
    finally:
        context.close()


def test_a_policy_is_promoted_and_rolled_back(
    browser: Browser, full_home: tuple[WebSite, dict[str, str]]
) -> None:
    site, _ = full_home
    registry = PolicyRegistry(site.home)
    with open_page(browser, site) as (page, trouble):
        page.goto(f"{site.url}/policies")
        registry.promote("01POLICYA", "by hand")
        page.goto(f"{site.url}/policies")
        page.locator(".card-item", has_text="1POLICYB").get_by_role("button", name="Promote").click()
        page.wait_for_selector(".current >> text=1POLICYB")
        assert registry.current().id == "01POLICYB"
        page.get_by_role("button", name="Roll back").click()
        page.wait_for_selector(".current >> text=1POLICYA")
        page.get_by_role("button", name="Roll back").click()
        page.wait_for_selector(".current >> text=the base model")
        assert registry.current().id == BASE_ID
        assert "rolled back from 01POLICYB" in page.inner_text(".events")
        assert trouble.events == []


def test_every_page_is_useful_without_javascript(
    browser: Browser, full_home: tuple[WebSite, dict[str, str]]
) -> None:
    """Everything that the page says is there, and nothing waits for a script."""
    site, names = full_home
    with page_without_script(browser) as page:
        for template in PAGES:
            path = template.format(**names)
            response = page.goto(f"{site.url}{path.replace('batch-1', 'batch-0')}")
            assert response is not None and response.status == 200, path
            assert len(page.inner_text("main")) > 60, path
            idle = page.locator("main button:visible:not([type=submit]):not(form button)").count()
            assert idle == 0, f"{path}: {idle} buttons do nothing"


def test_rating_and_undo_without_javascript(
    browser: Browser, full_home: tuple[WebSite, dict[str, str]]
) -> None:
    site, _ = full_home
    with page_without_script(browser) as page:
        for mode, button in (("thumb", "Good"), ("score", "4"), ("pair", "Left"), ("step", "Bad")):
            page.goto(f"{site.url}/rate?mode={mode}")
            before = _mine(site.home)
            page.locator("#decide").get_by_role("button", name=button).first.click()
            assert _mine(site.home) == before + 1, mode
            page.get_by_role("button", name="Undo").click()
            assert "Taken back" in page.inner_text("main")
            assert _mine(site.home) == before, mode


def test_a_preview_and_an_export_without_javascript(
    browser: Browser, full_home: tuple[WebSite, dict[str, str]]
) -> None:
    site, _ = full_home
    with page_without_script(browser) as page:
        page.goto(f"{site.url}/datasets")
        page.get_by_label("Format").select_option("sharegpt")
        page.get_by_role("button", name="Preview").click()
        assert "carry loss" in page.inner_text(".preview-row >> nth=0")
        page.get_by_role("button", name="Export all rows").click()
        while "running" in page.inner_text("#job"):
            page.reload()
        page.goto(f"{site.url}/datasets")
        with page.expect_download() as download:
            page.locator(".exports > li > a").first.click()
        assert Path(download.value.path()).read_text().count("\n") == 13


def test_picked_rows_are_exported(browser: Browser, full_home: tuple[WebSite, dict[str, str]]) -> None:
    """By key and by click; the bar shows how many and the command; the export has these rows."""
    site, _ = full_home
    with open_page(browser, site) as (page, trouble):
        page.goto(f"{site.url}/trajectories?q=outcome%3Dcompleted+run~batch")
        bar = page.locator("#picked")
        assert bar.is_hidden()
        page.keyboard.press("j")
        page.keyboard.press("x")
        page.locator("[data-pick]").nth(3).check()
        page.keyboard.press("j")
        page.keyboard.press("x")
        picked = [box.get_attribute("value") or "" for box in page.locator("[data-pick]:checked").all()]
        assert len(picked) == 3, "a key works after a click"
        assert bar.is_visible() and page.inner_text("[data-picked-count]") == "3"
        assert page.inner_text("[data-picked-command]").count("--id ") == 3
        page.keyboard.press("x")
        assert page.inner_text("[data-picked-count]") == "2"
        page.keyboard.press("x")
        bar.get_by_role("button", name="Export").click()
        page.get_by_label("Format").select_option("messages")
        page.get_by_role("button", name="Preview").click()
        page.wait_for_url("**format=messages*")
        page.get_by_role("button", name="Export all rows").click()
        page.wait_for_selector("#job .tag-good")
        page.goto(f"{site.url}/datasets")
        with page.expect_download() as download:
            page.locator(".exports a", has_text="messages-").first.click()
        rows = [json.loads(line) for line in Path(download.value.path()).read_text().splitlines()]
        assert {row["id"] for row in rows} == set(picked)
        assert trouble.events == []


def test_rows_are_picked_and_compared_without_javascript(
    browser: Browser, full_home: tuple[WebSite, dict[str, str]]
) -> None:
    site, _ = full_home
    with page_without_script(browser) as page:
        page.goto(f"{site.url}/trajectories")
        for position in range(2):
            page.locator("[data-pick]").nth(position).check()
        page.get_by_role("button", name="Clear").click()
        assert page.locator("#picked").is_hidden()
        for position in range(2):
            page.locator("[data-pick]").nth(position).check()
        page.get_by_role("button", name="Side by side").click()
        page.wait_for_url("**/compare?id=*&id=*")


def test_a_run_that_lost_its_supervisor_is_stopped_by_a_job(
    browser: Browser, full_home: tuple[WebSite, dict[str, str]]
) -> None:
    site, _ = full_home
    with open_page(browser, site) as (page, _):
        page.goto(f"{site.url}/runs/11223344")
        page.get_by_role("button", name="Stop").click()
        page.wait_for_selector("#job")
        assert "hermes rl stop 11223344" in page.inner_text("main")


def _mine(home: Path) -> int:
    with Reader(db_path(home)) as reader:
        return sum(1 for rating in reader.all_ratings() if rating.rater != "ana")
