"""Two hundred hostile trajectories: no dialog, no request, no broken page."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hermes.config.paths import db_path
from hermes.core import Rating, RatingKind, Reward, new_id
from hermes.store import Writer
from hermes.web.render.text import ansi_html, fold, plain_html
from tests.records import record
from tests.web.browsing import open_page, overflow
from tests.web.hostile import PAYLOADS, conversations
from tests.web.site import open_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser


def fill_hostile(home: Path, every: int) -> list[str]:
    ids = []
    with Writer(db_path(home)) as writer:
        for number, messages in enumerate(conversations()):
            payload = PAYLOADS[number // 5][:150]
            if number % every:
                continue
            text = payload.encode("utf-8", "replace").decode()
            trajectory = record(
                writer,
                messages,
                model=text or "m",
                run_id=text or "r",
                task_id=text or "t",
                metadata={"x": text},
            )
            writer.add_reward(Reward(trajectory, 0.5, text or "r", {"step": 1}, 1)).result()
            verdict = Rating(
                new_id(), trajectory, RatingKind.THUMB, 1.0, text.strip() or "r", 1, comment=text or None
            )
            writer.add_rating(verdict).result()
            ids.append(trajectory)
    return ids


@pytest.mark.parametrize("every", [17, pytest.param(1, marks=pytest.mark.slow)])
@pytest.mark.timeout(900)
def test_nothing_runs_loads_or_breaks(browser: Browser, tmp_path: Path, every: int) -> None:
    ids = fill_hostile(tmp_path, every)
    assert len(ids) == (200 if every == 1 else 12)
    paths = [
        "/",
        "/trajectories",
        "/trajectories?q=script",
        "/batches",
        "/rate",
        "/rate?mode=step",
        "/datasets?preview=1",
    ]
    paths += [f"/trajectories/{trajectory}" for trajectory in ids]
    paths += [f"/trajectories/{trajectory}/steps/1" for trajectory in ids[::4]]
    with open_site(tmp_path) as site, open_page(browser, site) as (page, trouble):
        for path in paths:
            response = page.goto(f"{site.url}{path}")
            assert response is not None and response.status == 200, (path, page.inner_text("h1"))
            assert page.locator("header.rail").is_visible(), path
            assert page.locator("#toast").count() == 1, f"{path}: the page ends where it should"
            assert (
                page.evaluate(
                    "document.querySelectorAll('main script, main style, main iframe, main link').length"
                )
                == 0
            )
            assert overflow(page) == 0, path
            assert trouble.events == [], path


def test_text_becomes_text() -> None:
    for payload in PAYLOADS:
        for markup in (plain_html(payload[:100_000]), ansi_html(payload[:100_000])):
            assert "<script" not in markup and "<img" not in markup and "<svg" not in markup
            assert "\x1b" not in markup and "\x00" not in markup and "\u202e" not in markup
            markup.encode("utf-8")
    assert str(plain_html("[REDACTED:KEY]")) == '<span class="redacted" title="redacted">KEY</span>'
    assert str(ansi_html("\x1b[31mred\x1b[0m <b>")) == '<span class="ansi-red">red</span> &lt;b&gt;'


def test_folding_keeps_both_limits() -> None:
    assert fold("a\nb", 20, 100) == ("a\nb", 0, 0)
    folded = fold("line\n" * 100, 20, 10_000)
    assert folded.text.count("\n") == 19 and folded.hidden_lines == 81
    assert fold("x" * 5_000_000, 20, 4000).hidden_chars == 4_996_000
