"""The documentation names commands, options, pages and headings that exist, and the reference is current."""

from __future__ import annotations

import importlib.util
import shlex
from pathlib import Path
from types import ModuleType

import pytest

from hermes.cli.skills.commands import command_problem
from tests.docs.pages import PAGES, ROOT, anchors, commands, links

PLACEHOLDERS = ("…", "...", "|", "[", "<")


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_command_and_option_of_a_page_exists(page: Path) -> None:
    problems = []
    for command in commands(page):
        line = command.text.partition("  ")[0]  # in blocks of usage, two spaces begin the explanation
        words = shlex.split(line, comments=True)
        words = words[next(index for index, word in enumerate(words) if word == "hermes") + 1 :]
        end = next((i for i, word in enumerate(words) if word.startswith(PLACEHOLDERS) or "|" in word), None)
        problem = command_problem(words[:end])
        if problem and not ((end is not None or command.is_mention) and problem.endswith("needs a value")):
            problems.append(f"{command.text}: {problem}")
    assert not problems


@pytest.mark.parametrize("page", PAGES, ids=[str(page.relative_to(ROOT)) for page in PAGES])
def test_every_link_leads_to_a_page_and_a_heading(page: Path) -> None:
    broken = []
    for link in links(page):
        if link.startswith(("http://", "https://", "mailto:")):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert not broken


def test_the_reference_says_what_the_code_says() -> None:
    assert _script("reference").outdated() == [], "run: make reference"


def test_every_setting_has_a_meaning() -> None:
    lines = (ROOT / "docs/reference/settings.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| `")]
    assert len(rows) > 40
    assert [row for row in rows if row.endswith("|  |")] == []


def _script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / "docs" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
