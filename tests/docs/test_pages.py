"""The documentation names commands, options, pages and headings that exist, and the reference is current."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from tests.docs.pages import PAGES, ROOT, WRITTEN, anchors, blocks, cells, links, opening

MOST_WORDS = 25
"""Of a cell of a table."""


def test_every_link_leads_to_a_page_and_a_heading() -> None:
    broken = []
    for page in PAGES:
        for link in links(page):
            if link.startswith(("http://", "https://", "mailto:")):
                continue
            name, _, anchor = link.partition("#")
            target = page.parent / name if name else page
            if not target.exists() or (anchor and anchor not in anchors(target)):
                broken.append((_name(page), link))
    assert broken == []


def test_the_reference_says_what_the_code_says() -> None:
    """In a process of its own: click keeps the help option of a command as its first context had it."""
    checked = subprocess.run(
        [sys.executable, "scripts/docs/reference.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert checked.returncode == 0, checked.stderr


def test_every_setting_has_a_meaning() -> None:
    lines = (ROOT / "docs/reference/settings.md").read_text("utf-8").splitlines()
    rows = [line for line in lines if line.startswith("| `")]
    assert len(rows) > 40
    assert [row for row in rows if row.endswith("|  |")] == []


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT))


# The tables of threats in SECURITY.md are for reviewers, not to learn from.
LEARNING = [page for page in PAGES if page.name != "SECURITY.md"]
TASKS = [page for page in WRITTEN if page.parent.name in ("howto", "tutorials")]


def test_no_cell_of_a_table_is_a_paragraph() -> None:
    long = [
        (_name(page), cell) for page in LEARNING for cell in cells(page) if len(cell.split()) > MOST_WORDS
    ]
    assert long == []


def test_a_cell_that_is_too_long_is_noticed(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"| a | b |\n|---|---|\n| x \\| y | {'word ' * 26}|\n\n```text\n| {'code ' * 40}|\n```\n")
    assert [len(cell.split()) for cell in cells(page)] == [1, 1, 3, 26]


def test_pages_begin_in_their_own_words() -> None:
    beginnings = Counter(
        " ".join(opening(page).split()[:3]) for page in WRITTEN if page.parent.name != "tutorials"
    )
    assert [words for words, count in beginnings.items() if count > 2] == []
    assert [_name(page) for page in WRITTEN if "At the end of this page" in opening(page)] == []


def test_a_tutorial_begins_with_what_the_reader_will_have() -> None:
    tutorials = [page for page in WRITTEN if page.parent.name == "tutorials"]
    assert [_name(page) for page in tutorials if "At the end of this tutorial" not in opening(page)] == []


def test_a_how_to_shows_a_command_before_it_explains() -> None:
    first_blocks = {_name(page): next(iter(blocks(page)), None) for page in TASKS}
    commands = ("sh", "python", "yaml")
    assert [
        name for name, block in first_blocks.items() if block is None or block.language not in commands
    ] == []
