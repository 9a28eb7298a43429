"""The documentation names commands, options, pages and headings that exist, and the reference is current."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from hermes.cli.skills.commands import command_problem
from tests.docs.pages import PAGES, ROOT, anchors, blocks, cells, commands, links, opening
from tests.docs.scripts import load_script

PLACEHOLDERS = ("…", "...", "|", "[", "<")
MOST_WORDS = 25
"""Of a cell of a table."""


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
    assert load_script("reference").outdated() == [], "run: make reference"


def test_every_setting_has_a_meaning() -> None:
    lines = (ROOT / "docs/reference/settings.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| `")]
    assert len(rows) > 40
    assert [row for row in rows if row.endswith("|  |")] == []


def _names(pages: list[Path]) -> list[str]:
    return [str(page.relative_to(ROOT)) for page in pages]


# The tables of threats in SECURITY.md are for reviewers, not to learn from.
LEARNING = [page for page in PAGES if page.name != "SECURITY.md"]
WRITTEN = [
    page
    for page in LEARNING
    if ROOT / "docs" in page.parents
    and "results" not in page.parts
    and not page.read_text("utf-8").startswith("<!-- Written by")
]
"""Pages of the documentation that are not generated."""
TASKS = [page for page in WRITTEN if page.parent.name in ("howto", "tutorials")]


@pytest.mark.parametrize("page", LEARNING, ids=_names(LEARNING))
def test_no_cell_of_a_table_is_a_paragraph(page: Path) -> None:
    assert [cell for cell in cells(page) if len(cell.split()) > MOST_WORDS] == []


def test_a_cell_that_is_too_long_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"| a | b |\n|---|---|\n| x \\| y | {'word ' * 26}|\n\n```text\n| {'code ' * 40}|\n```\n")
    assert [len(cell.split()) for cell in cells(page)] == [1, 1, 3, 26]


@pytest.mark.parametrize("page", WRITTEN, ids=_names(WRITTEN))
def test_a_page_begins_with_what_the_reader_will_have(page: Path) -> None:
    assert re.search(r"At the end of this (page|tutorial) ", opening(page)), opening(page)


@pytest.mark.parametrize("page", TASKS, ids=_names(TASKS))
def test_a_how_to_shows_a_command_before_it_explains(page: Path) -> None:
    first = next(iter(blocks(page)), None)
    assert first is not None and first.language in ("sh", "python", "yaml")
