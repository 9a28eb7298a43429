"""Sessions of other agents in the web app: their tools as what they do, and the agent as a condition."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hermes.config.paths import db_path
from hermes.store import Filter, Reader
from hermes.web.render.calls import show_call
from tests.data.sessions.clients import CLIENTS, copy_of, imported
from tests.web.browsing import open_page
from tests.web.site import WebSite, open_site

if TYPE_CHECKING:
    from playwright.sync_api import Browser

PATCH = """*** Begin Patch
*** Update File: a.py
@@ def f
-    return 1
+    return 2
*** Add File: b.py
+x = 1
*** End Patch"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WebSite]:
    root = tmp_path_factory.mktemp("foreign")
    home = root / "home"
    home.mkdir()
    for client in CLIENTS:
        assert imported(db_path(home), client, copy_of(client, root / client)).rows > 0
    with open_site(home) as opened:
        yield opened


def first_of(site: WebSite, agent: str, tool: str) -> str:
    with Reader(db_path(site.home)) as reader:
        return next(reader.matching_ids(Filter(agent=agent, tool=tool)))


@pytest.mark.parametrize(
    ("agent", "tools"),
    [
        ("claude-code", ("Write", "Edit", "Bash")),
        ("opencode", ("write", "edit", "bash")),
        ("pi", ("write", "edit", "bash")),
    ],
)
def test_edits_are_diffs_and_shells_are_commands(
    browser: Browser, site: WebSite, agent: str, tools: tuple[str, ...]
) -> None:
    with open_page(browser, site) as (page, trouble):
        page.goto(f"{site.url}/trajectories/{first_of(site, agent, tools[1])}")
        calls = {name: page.locator(f"section[aria-label='Call of {name}']").first for name in tools}
        written, edited, run = (calls[name] for name in tools)
        assert written.locator(".diff .add").all_inner_texts()[0].rstrip() == "+def hello():"
        assert written.locator(".diff .del").count() == 0
        assert [text.rstrip() for text in edited.locator(".diff .del").all_inner_texts()] == ["−return 1"]
        assert [text.rstrip() for text in edited.locator(".diff .add").all_inner_texts()] == ["+return 2"]
        assert edited.locator(".diff > p").inner_text() == "/home/ada/project/hello.py"
        assert run.locator(".command-line").inner_text() == "cat hello.py; exit 3"
        assert "exit 3" in run.locator(".result-head").inner_text()
        assert page.locator("dl.facts").get_by_role("link", name=agent).count() == 1
        if folder := os.environ.get("HERMES_SCREENSHOTS"):
            page.screenshot(path=Path(folder) / f"{agent}.png", full_page=True)
    assert trouble.events == []


def test_a_shell_of_codex(browser: Browser, site: WebSite) -> None:
    with open_page(browser, site) as (page, trouble):
        page.goto(f"{site.url}/trajectories/{first_of(site, 'codex', 'exec_command')}")
        assert page.locator(".command-line").first.inner_text().startswith("echo step0")
    assert trouble.events == []


@pytest.mark.parametrize("agent", CLIENTS)
def test_the_query_box_takes_the_agent(site: WebSite, agent: str) -> None:
    rows = site.get(f"/trajectories?q=agent%3D{agent}").text
    with Reader(db_path(site.home)) as reader:
        ids = {trajectory_id[-8:] for trajectory_id in reader.matching_ids(Filter(agent=agent))}
        others = {trajectory_id[-8:] for trajectory_id in reader.matching_ids()} - ids
    listed = set(re.findall(r'<span class="mono">(\w{8})</span>', rows))
    assert listed == ids
    assert not listed & others
    assert site.get("/trajectories?q=agent_version%3D2.1.197").text.count("<tr data-row") == 7


def test_what_is_shown_of_a_call() -> None:
    shell = show_call("shell", {"command": ["bash", "-lc", "ls | head"], "workdir": "/"})
    assert shell.command is not None
    assert shell.command.text == "ls | head"
    assert show_call("x", {"command": ["ls", "a b"]}).command == show_call("y", {"cmd": "ls 'a b'"}).command
    for patched in (
        show_call("apply_patch", {"input": PATCH}),
        show_call("shell", {"command": ["apply_patch", PATCH]}),
        show_call("shell", {"command": ["bash", "-lc", f"apply_patch <<'EOF'\n{PATCH}\nEOF"]}),
    ):
        assert patched.command is None
        changed, added = patched.diffs
        assert (changed.path, added.path) == ("Update File: a.py", "Add File: b.py")
        assert [(line.kind, line.text) for line in changed.lines] == [
            ("hunk", "@@ def f"),
            ("del", "    return 1"),
            ("add", "    return 2"),
        ]
    several = show_call(
        "MultiEdit", {"file_path": "a", "edits": [{"old_string": "x", "new_string": "y"}] * 2}
    )
    assert [line.kind for line in several.diffs[0].lines] == ["del", "add", "hunk", "del", "add"]
    long = show_call("Write", {"file_path": "a", "content": "x\n" * 500})
    assert (len(long.diffs[0].lines), long.diffs[0].hidden_lines) == (200, 300)
    for odd in ({}, {"command": 7}, {"edits": [7]}, {"old_string": "a"}, {"input": "plain"}, {"command": []}):
        assert show_call("tool", odd) == show_call("tool", {})
