"""The web app in a real browser: keys, rating, live curves, accessibility."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hermes.config.paths import db_path
from hermes.core import Message, Rating, Step, StepKind, ToolCall, ToolResult
from hermes.rl.run import RunState
from hermes.store import Reader, Writer
from tests.records import COMPLETED, model_call, record
from tests.web.browsing import LEAST_VISIBLE_SHIFT, PAGES, WIDTHS, layout_shift, open_page, overflow
from tests.web.dripping import drip
from tests.web.samples import fill
from tests.web.site import WebSite, open_site
from tests.web.training import fill_runs, make_run, metrics_row

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

AXE = Path(__file__).parent / "vendor" / "axe-4.14.0.min.js"
MODES = {
    "thumb": ["y", "n"],
    "score": ["1", "2", "3", "4", "5"],
    "pair": ["ArrowLeft", "ArrowRight", "=", "x", "Shift+ArrowLeft", "Shift+ArrowRight", "a", "b"],
    "step": ["+", "-", "0"],
}


@pytest.fixture(scope="module")
def full_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[WebSite, dict[str, str]]]:
    """Everything that a page can show."""
    home = tmp_path_factory.mktemp("full") / "home"
    ids = fill(home)
    run, other_run = fill_runs(home)
    with open_site(home) as site:
        yield site, {"id": ids[5], "sibling": ids[4], "run": run, "other_run": other_run}


@pytest.fixture(scope="module")
def rating_site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebSite]:
    """Several tests rate here, each as a rater of its own."""
    home = tmp_path_factory.mktemp("rating") / "home"
    fill(home, 40)
    with open_site(home) as site:
        yield site


def ratings_of(home: Path, rater: str, everything: bool = False) -> list[Rating]:
    with Reader(db_path(home)) as reader:
        return [rating for rating in reader.all_ratings(everything=everything) if rating.rater == rater]


def settled(page: Page) -> None:
    """Until nothing is left to be saved."""
    page.wait_for_function(
        "() => JSON.parse(localStorage.getItem('hermes-unsaved-ratings') || '[]').length === 0"
    )


def test_search_and_read_by_keyboard(browser: Browser, full_site: tuple[WebSite, dict[str, str]]) -> None:
    site, _ = full_site
    with open_page(browser, site) as (page, trouble):
        page.goto(f"{site.url}/trajectories")
        page.keyboard.press("/")
        page.keyboard.type("rew")
        page.keyboard.press("Tab")
        page.keyboard.type(">0.9 attempt")
        page.keyboard.press("Enter")
        page.wait_for_url("**q=reward*")
        assert page.locator("tbody [data-row]").count() == 3
        assert page.locator("mark").first.inner_text().lower() == "attempt"
        page.keyboard.press("j")
        page.keyboard.press("Enter")
        page.wait_for_selector("[data-step]")
        page.keyboard.press("g")
        page.keyboard.press("g")
        for _ in range(2):
            page.keyboard.press("j")
        assert page.locator(".card.at").get_attribute("id") == "step-2"
        page.keyboard.press("r")
        page.wait_for_selector("#slot-2 .raw-json")
        page.keyboard.press("t")
        page.wait_for_selector("#slot-2 .token-text")
        page.keyboard.press("f")
        assert page.locator(".rail").is_hidden()
        page.keyboard.press("f")
        page.keyboard.press("?")
        assert page.locator("#help").is_visible()
        page.keyboard.press("Escape")
        page.keyboard.press("d")
        page.wait_for_url("**/compare?*")
        assert "First divergence" in page.inner_text("main")
        assert trouble.events == []


@pytest.mark.parametrize("mode", MODES)
def test_twenty_ratings_by_keyboard_with_undo(browser: Browser, rating_site: WebSite, mode: str) -> None:
    keys = MODES[mode]
    rater = f"by-{mode}"
    with open_page(browser, rating_site, rater=rater) as (page, trouble):
        page.goto(f"{rating_site.url}/rate?mode={mode}")
        for number in range(20):
            before = page.locator(".item:not(.waiting)").get_attribute("data-item")
            page.keyboard.press(keys[number % len(keys)])
            if mode != "step":
                page.wait_for_function(
                    "key => document.querySelector('.item').dataset.item !== key", arg=before
                )
        assert page.locator("#rated").inner_text() == "20"
        for _ in range(3):
            page.keyboard.press("u")
        assert page.locator("#rated").inner_text() == "17"
        page.keyboard.press("c")
        page.keyboard.type("n y 5 u: no key while typing")
        page.keyboard.press("Enter")
        page.keyboard.press(keys[0])
        settled(page)
        recorded = ratings_of(rating_site.home, rater)
        assert len(recorded) == 18
        assert recorded[-1].comment == "n y 5 u: no key while typing"
        events = ratings_of(rating_site.home, rater, everything=True)
        assert len(events) == 24, "20, three withdrawals, one more"
        shown = page.locator(".item:not(.waiting)").get_attribute("data-item")
        page.keyboard.press("c")
        page.keyboard.type("on second thoughts")
        page.keyboard.press("Control+Enter")
        settled(page)
        again = ratings_of(rating_site.home, rater)
        assert (again[-1].comment, again[-1].value) == ("on second thoughts", recorded[-1].value)
        assert again[-1].trajectory_id == recorded[-1].trajectory_id and len(again) == 18
        assert page.locator(".item:not(.waiting)").get_attribute("data-item") == shown
        assert {rating.elapsed_ms is not None for rating in recorded} == {True}
        assert trouble.events == []


def test_a_long_system_prompt_is_one_line_and_a_phone_shows_the_answer(
    browser: Browser, tmp_path: Path
) -> None:
    rules = "".join(f"Rule {number}: answer in one sentence.\n" for number in range(200))
    with Writer(db_path(tmp_path)) as writer:
        for answer in ("It is 4.", "It is 5."):
            conversation = [Message.system(rules), Message.user("What is 2 + 2?"), Message.assistant(answer)]
            recorded = record(writer, conversation)
    address = f"/trajectories/{recorded}"
    with open_site(tmp_path) as site, open_page(browser, site, width=390, height=844) as (page, trouble):
        for path in ("/rate", "/rate?mode=pair", address):
            page.goto(site.url + path)
            answer = page.locator(".item:not(.waiting) .card.assistant, .transcript .card.assistant").first
            box = answer.bounding_box()
            assert box is not None and box["y"] + box["height"] < 844, path
            assert box["width"] > 250, path
        assert not page.get_by_text("Rule 17:").is_visible()
        page.locator(".card.system summary").click()
        assert page.get_by_text("Rule 17:").is_visible()
        assert trouble.events == []


def test_two_columns_scroll_together(browser: Browser, rating_site: WebSite) -> None:
    columns_of_item = ".item:not(.waiting) [data-columns] .column"
    is_at = "([query, index, top]) => Math.abs(document.querySelectorAll(query)[index].scrollTop - top) < 3"
    with open_page(browser, rating_site, height=420, rater="scrolls") as (page, trouble):
        page.goto(f"{rating_site.url}/rate?mode=pair")
        columns = page.locator(columns_of_item)
        rooms = columns.evaluate_all("all => all.map(column => column.scrollHeight - column.clientHeight)")
        assert len(rooms) == 2 and min(rooms) > 50, "both are longer than the window"
        # Without a pause between them: a browser joins what one column was told and what its reader did.
        for leader, share in ((0, 1.0), (1, 0.5), (0, 0.0), (1, 0.9), (0, 0.2), (1, 0.0)):
            columns.nth(leader).evaluate("(it, top) => { it.scrollTop = top; }", rooms[leader] * share)
            page.wait_for_function(is_at, arg=[columns_of_item, 1 - leader, rooms[1 - leader] * share])
        assert trouble.events == []


def test_what_cannot_be_saved_is_kept_and_said(browser: Browser, rating_site: WebSite) -> None:
    """The connection is cut between the key and the save; the next page sends what was not saved, once."""
    with open_page(browser, rating_site, rater="cut-off") as (page, _):
        page.goto(f"{rating_site.url}/rate")
        page.wait_for_load_state("networkidle")
        page.route(
            "**/rate", lambda route: route.abort() if route.request.method == "POST" else route.continue_()
        )
        page.keyboard.press("y")
        page.wait_for_selector("#pending:not([hidden])")
        assert "1 rating is not saved yet" in page.inner_text("#pending")
        assert ratings_of(rating_site.home, "cut-off") == []
        page.unroute("**/rate")
        page.goto(f"{rating_site.url}/rate?mode=score")
        settled(page)
        assert [rating.value for rating in ratings_of(rating_site.home, "cut-off")] == [1.0]


def test_a_live_curve_grows(browser: Browser, tmp_path: Path) -> None:
    folder = make_run(tmp_path, "11223344", "calculator", 30, RunState.PENDING)
    with open_site(tmp_path) as site, open_page(browser, site) as (page, trouble):
        page.goto(f"{site.url}/runs/11223344")
        page.wait_for_selector(".panel.drawn")
        assert page.inner_text("#run-step") == "30"
        with (folder / "metrics.jsonl").open("a") as file:
            for step in range(31, 36):
                file.write(json.dumps(metrics_row(step, time.time())) + "\n")
        page.wait_for_function("() => document.querySelector('#run-step').textContent === '35'")
        page.locator('[data-panel="reward/mean"] .u-over').click()
        page.wait_for_selector("#rollouts section")
        assert "Step" in page.inner_text("#rollouts h2")
        assert trouble.events == []


def test_a_transcript_grows_while_it_is_read(browser: Browser, tmp_path: Path) -> None:
    call = ToolCall("c1", "terminal", '{"command": "ls"}')
    with Writer(db_path(tmp_path)) as writer:
        trajectory = record(writer, [Message.user("Go")], outcome=None)
        with open_site(tmp_path) as site, open_page(browser, site) as (page, trouble):
            page.goto(f"{site.url}/trajectories/{trajectory}")
            cards = page.locator("article.card")
            asked = Step(1, StepKind.MODEL, Message.assistant("", tool_calls=(call,)), 5, call=model_call())
            writer.append(trajectory, asked, context=()).result()
            cards.nth(1).wait_for()
            page.keyboard.press("G")
            result = ToolResult("c1", "terminal", True, 3.0)
            writer.append(
                trajectory, Step(2, StepKind.TOOL, Message.tool(call, "a.py"), 5, result=result)
            ).result()
            page.wait_for_selector("#step-1 .output:has-text('a.py')")
            assert cards.count() == 2 and "at" in (cards.nth(1).get_attribute("class") or "").split()
            answered = Step(3, StepKind.MODEL, Message.assistant("One file."), 6, call=model_call())
            writer.append(trajectory, answered, context=()).result()
            writer.finish(trajectory, COMPLETED).result()
            page.wait_for_selector("#step-3:has-text('One file.')")
            page.wait_for_selector(".facts:has-text('completed')")
            assert page.locator(".live").count() == 0
            assert page.locator(".outline li").count() == 3
            assert trouble.events == []


def test_a_mark_says_what_happened_where_the_cursor_is(
    browser: Browser, full_site: tuple[WebSite, dict[str, str]]
) -> None:
    site, names = full_site
    with open_page(browser, site, width=1600) as (page, trouble):
        page.goto(f"{site.url}/runs/{names['run']}")
        page.wait_for_selector(".panel.drawn")
        plot = page.locator('[data-panel="reward/mean"] .u-over')
        box = plot.bounding_box()
        assert box is not None
        for step, text in ((50, "after a crash"), (70, "engine killed (signal 9)"), (100, "resumed")):
            plot.hover(position={"x": (step - 1) / 119 * box["width"], "y": 40})
            label = page.locator('[data-panel="reward/mean"] [data-value]')
            assert text in label.inner_text(), step
        assert page.locator('[data-panel="reward/p10"] .lines-key .key').count() == 3
        page.locator(".marks summary").click()
        assert "step 100 resumed; it had ended: stopped" in page.inner_text(".marks")
        assert trouble.events == []


def test_one_key_makes_a_preference_pair_of_two_attempts(browser: Browser, rating_site: WebSite) -> None:
    with open_page(browser, rating_site, rater="keyed") as (page, trouble):
        page.goto(f"{rating_site.url}/trajectories?q=task%3Dtask-1")
        ids = [box.get_attribute("value") or "" for box in page.locator("[data-pick]").all()[:2]]
        page.goto(f"{rating_site.url}/compare?id={ids[0]}&id={ids[1]}")
        page.keyboard.press("ArrowRight")
        page.wait_for_url("**/rate?**")
        (rating,) = ratings_of(rating_site.home, "keyed")
        assert [rating.trajectory_id, rating.other_id] == ids and rating.value < 0, "the right one is better"
        assert trouble.events == []


@pytest.mark.parametrize(
    "width", [390, *(pytest.param(width, marks=pytest.mark.slow) for width in WIDTHS[1:])]
)
def test_every_page_fits_without_error_or_outside_request(
    browser: Browser, full_site: tuple[WebSite, dict[str, str]], width: int
) -> None:
    site, names = full_site
    with open_page(browser, site, width=width) as (page, trouble):
        for template in PAGES:
            path = template.format(**names)
            response = page.goto(f"{site.url}{path}")
            assert response is not None and response.status == 200, path
            assert overflow(page) == 0, path
            assert layout_shift(page) < LEAST_VISIBLE_SHIFT, path
            assert trouble.events == [], path


@pytest.mark.parametrize(
    ("pages", "width"),
    [
        (("/", "/compare?id={id}&id={sibling}", "/rate?mode=pair", "/rate?mode=score", "/environments"), 390),
        *(pytest.param(PAGES, width, marks=pytest.mark.slow) for width in WIDTHS),
    ],
)
def test_nothing_moves_while_a_page_arrives_in_pieces(
    browser: Browser, full_site: tuple[WebSite, dict[str, str]], pages: tuple[str, ...], width: int
) -> None:
    site, names = full_site
    shifts = {}
    with drip(site) as slow_site, open_page(browser, slow_site, width=width) as (page, _):
        page.goto(f"{slow_site.url}/rate")  # its styles and scripts are in the cache from now on
        for template in pages:
            path = template.format(**names)
            page.goto(f"{slow_site.url}{path}")
            shifts[path] = layout_shift(page)
    assert {path: shift for path, shift in shifts.items() if shift >= LEAST_VISIBLE_SHIFT} == {}


@pytest.mark.parametrize(
    ("pages", "dark", "width"),
    [
        (("/trajectories?q=pytest", "/trajectories/{id}", "/rate?mode=pair", "/runs/{run}"), False, 390),
        pytest.param(PAGES, False, 390, marks=pytest.mark.slow),
        pytest.param(PAGES, False, 1024, marks=pytest.mark.slow),
        pytest.param(PAGES, True, 1024, marks=pytest.mark.slow),
    ],
)
def test_axe_finds_nothing_serious(
    browser: Browser,
    full_site: tuple[WebSite, dict[str, str]],
    pages: tuple[str, ...],
    dark: bool,
    width: int,
) -> None:
    site, names = full_site
    source = AXE.read_text()
    problems = []
    with open_page(browser, site, dark=dark, width=width) as (page, _):
        for template in pages:
            page.goto(f"{site.url}{template.format(**names)}")
            page.evaluate(source)
            result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
            for violation in result["violations"]:
                if violation["impact"] in ("serious", "critical"):
                    nodes = [node["html"][:200] for node in violation["nodes"][:3]]
                    problems.append((template, violation["id"], nodes))
    assert problems == []


def test_pages_work_without_javascript(browser: Browser, full_site: tuple[WebSite, dict[str, str]]) -> None:
    site, names = full_site
    context = browser.new_context(java_script_enabled=False)
    page = context.new_page()
    page.goto(f"{site.url}/trajectories")
    page.get_by_role("searchbox").or_(page.get_by_role("combobox")).first.fill("outcome=max_turns")
    page.get_by_role("button", name="Search").click()
    assert page.locator("tbody [data-row]").count() == 12
    page.locator("tbody [data-row] a").first.click()
    assert page.locator("article").count() == 5
    page.goto(f"{site.url}/runs/{names['run']}")
    assert page.locator("svg polyline").count() >= 5
    context.close()
