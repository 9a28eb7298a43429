"""The output blocks of the pages are what the commands above them print."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, WRITTEN, blocks
from tests.docs.scripts import load_script
from tests.docs.shell_lines import mention_problem

outputs = load_script("outputs")
PAGES = outputs.marked_pages()
QUICK = (
    *("agent-tools.md", "batch-ray.md", "command-line.md", "compat.md", "parsers.md"),
    *("howto/delete.md", "howto/own-reward.md", "howto/settings.md", "howto/several-machines.md"),
)
"""Pages that every test run checks; the others are checked nightly, with the marks that need the model."""
SCRIPTS = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["scripts"]
NO_OUTPUT = {
    "agents.md": "it needs the agents",
    "benchmarks.md": "tables of recorded measurements",
    "glossary.md": "a list of words",
    "howto/openenv.md": "it needs a package of OpenEnv's",
    "howto/own-tool.md": "it needs a package of your own",
    "tasks.md": "a script writes it, with public tasks",
    "sessions.md": "what clients left on a machine; the tutorial shows it",
    "index.md": "the result of the quickstart is on its own page",
}
RECORDED = {
    "agent-environments.md": "beside a mark: what the bundled model answered",
    "explanation/proof-of-training.md": "metrics of a run on an H200",
    "explanation/trust-boundaries.md": "lines that depend on the machine",
    "howto/own-agent.md": "one rollout of an agent of others",
    "howto/resume.md": "a batch and an RL run of 20 minutes",
    "quickstart.md": "the result of the quickstart",
    "tutorials/claude-code-week.md": "what the client left; test_tutorials.py imports it and compares",
    "tutorials/improve-texts.md": "needs a provider; test_tutorials.py follows it on loopback and compares",
    "tutorials/first-rl-run.md": "a run of 20 minutes; test_tutorials.py makes it and compares",
}
"""Pages whose output was recorded once: the command takes minutes, or a machine that tests do not have."""


def _name(page: Path) -> str:
    return str(page.relative_to(ROOT / "docs"))


def _parameters() -> list[object]:
    return [
        pytest.param(page, id=_name(page), marks=() if _name(page) in QUICK else (pytest.mark.slow,))
        for page in PAGES
    ]


def test_every_marked_command_exists() -> None:
    for page in PAGES:
        page_marks = outputs.marks(page.read_text("utf-8"))
        assert page_marks, page
        for mark in page_marks:
            where = f"{_name(page)}: {mark.command}"
            words = shlex.split(re.split(r" (?:\||>|2>|&) ", mark.command)[0])
            assert words[0] in ("hermes", "mkdir", "printf", *SCRIPTS), where
            problem = mention_problem(shlex.join(words)) if words[0] == "hermes" else None
            assert problem is None or mark.option("status", 0) == 2, where  # a slip that the page is about


@pytest.mark.timeout(600)
@pytest.mark.parametrize("page", _parameters())
def test_the_blocks_of_a_page_are_current(page: Path) -> None:
    cheap = _name(page) in QUICK
    executed = list(outputs.execute(outputs.marks(page.read_text("utf-8")), cheap))
    compared = [(mark, output) for mark, output in executed if mark.block is not None]
    for mark, output in compared:
        assert outputs.shape(outputs.inner(mark.block)) == outputs.shape(output), (
            f"make outputs: {mark.command}"
        )


def test_a_page_shows_a_command_and_its_real_output() -> None:
    for page in WRITTEN:
        name = _name(page)
        if name in NO_OUTPUT:
            continue
        languages = [block.language for block in blocks(page)]
        assert {"python", "sh"} & set(languages), f"{name} shows no command"
        if name in RECORDED:
            assert "text" in languages, name
        else:
            page_marks = outputs.marks(page.read_text("utf-8"))
            assert any(mark.block for mark in page_marks), f"no output of {name} is regenerated"


def test_the_pages_with_an_exception_exist() -> None:
    names = {_name(page) for page in WRITTEN}
    assert {*NO_OUTPUT, *RECORDED} <= names


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
