"""The output blocks of the pages are what the commands above them print."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from hermes.cli.skills.commands import command_problem
from tests.docs.pages import ROOT
from tests.docs.scripts import load_script

outputs = load_script("outputs")
PAGES = outputs.marked_pages()
QUICK = ("howto/settings.md", "howto/delete.md", "howto/own-reward.md")
"""Pages that every test run checks; the others are checked nightly."""


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT / "docs"))


def _parameters() -> list[object]:
    return [
        pytest.param(page, id=_name(page), marks=() if _name(page) in QUICK else (pytest.mark.slow,))
        for page in PAGES
    ]


@pytest.mark.parametrize("page", PAGES, ids=map(_name, PAGES))
def test_every_marked_command_exists(page: Path) -> None:
    lines = [mark.command for mark in outputs.marks(page.read_text("utf-8"))]
    assert lines
    for line in lines:
        words = shlex.split(line.partition(" | ")[0].partition(" > ")[0])
        assert words[0] in ("hermes", "printf"), line
        assert words[0] == "printf" or command_problem(words[1:]) is None, line


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", _parameters())
def test_the_blocks_of_a_page_are_current(page: Path) -> None:
    executed = list(outputs.execute(outputs.marks(page.read_text("utf-8")), cheap=True))
    compared = [(mark, output) for mark, output in executed if mark.block is not None]
    for mark, output in compared:
        assert outputs.shape(outputs.inner(mark.block)) == outputs.shape(output), (
            f"make outputs: {mark.command}"
        )


def test_no_block_is_empty() -> None:
    for page in PAGES:
        for mark in outputs.marks(page.read_text("utf-8")):
            assert mark.block is None or outputs.inner(mark.block).strip(), (page, mark.command)


def test_a_block_that_is_out_of_date_is_rewritten_and_the_rest_stays() -> None:
    page = "# Page\n\n<!-- run: printf '3 rows\\n' -->\n```text\n7 lines\n```\n\nend\n"
    new = outputs.rewritten(page, cheap=True)
    assert new == page.replace("7 lines", "3 rows")
    assert outputs.rewritten(new.replace("3 rows", "4 rows"), cheap=True) == new.replace("3 rows", "4 rows")


def test_a_command_that_fails_is_named() -> None:
    with pytest.raises(SystemExit, match="hermes nothing"):
        outputs.rewritten("<!-- run: hermes nothing -->\n", cheap=True)
