"""The server is killed between key and save, in a real browser: once in the store, or the page says so."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hermes.config.paths import db_path
from hermes.store import Reader
from tests.ports import free_port
from tests.web.browsing import open_page
from tests.web.killed_server import KilledServer
from tests.web.samples import fill
from tests.web.site import WebSite

if TYPE_CHECKING:
    from playwright.sync_api import Browser

_UNSAVED = "JSON.parse(localStorage.getItem('hermes-unsaved-ratings') || '[]').length"


@pytest.mark.parametrize("kill", ["before it reads the request", "while it answers"])
def test_a_server_that_is_killed_between_key_and_save(browser: Browser, tmp_path: Path, kill: str) -> None:
    fill(tmp_path, 8)
    port = free_port()
    command = [sys.executable, "-m", "hermes", "web", "--no-open", "--port", str(port)]
    site = WebSite(f"http://127.0.0.1:{port}", tmp_path)
    with (
        KilledServer(command, {**os.environ, "HERMES_HOME": str(tmp_path)}) as server,
        open_page(browser, site) as (page, _),
    ):
        page.goto(f"{site.url}/rate")
        page.wait_for_load_state("networkidle")
        if kill == "before it reads the request":
            server.send(signal.SIGSTOP)
            page.keyboard.press("y")
            assert page.evaluate(_UNSAVED) == 1, "the page keeps what is not confirmed"
            server.send(signal.SIGKILL)
            page.wait_for_selector("#pending:not([hidden])")
            assert "not saved yet" in page.inner_text("#pending")
            assert _saved(tmp_path) == 0
        else:
            page.keyboard.press("y")
            server.send(signal.SIGKILL)
        server.restart()
        page.goto(f"{site.url}/rate?mode=score")
        page.wait_for_function(f"() => {_UNSAVED} === 0")
        assert page.locator("#pending").is_hidden()
    assert _saved(tmp_path) == 1


def _saved(home: Path) -> int:
    with Reader(db_path(home)) as reader:
        return sum(1 for rating in reader.all_ratings(everything=True) if rating.rater != "ana")
