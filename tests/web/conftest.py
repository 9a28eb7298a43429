"""One store and one server for the tests that only read; one browser for a module."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.browser import chromium
from tests.web.samples import fill
from tests.web.site import WebSite, open_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def ids_by_home() -> dict[Path, list[str]]:
    return {}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory, ids_by_home: dict[Path, list[str]]) -> Iterator[WebSite]:
    home = tmp_path_factory.mktemp("web") / "home"
    ids_by_home[home] = fill(home)
    with open_site(home) as running:
        yield running


@pytest.fixture
def ids(site: WebSite, ids_by_home: dict[Path, list[str]]) -> list[str]:
    return ids_by_home[site.home]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as opened:
        yield opened
