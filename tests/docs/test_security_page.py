"""SECURITY.md promises what a test shows: every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "SECURITY.md").read_text()


def test_every_test_that_the_page_names_exists() -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    names = {path.stem for path in files} | {path.name for path in files}
    for path in files:
        names |= set(re.findall(r"^(?:async )?def (test_\w+)", path.read_text(), re.MULTILINE))
    named = set(re.findall(r"`(test_\w+(?:\.py)?)", PAGE))
    assert len(named) > 40
    assert named - names == set()


def test_every_row_of_threats_and_promises_names_its_test() -> None:
    sections = PAGE.split("\n## ")
    tables = [part for part in sections if part.startswith(("Graders", "Sandboxes", "Probes", "The agent"))]
    assert len(tables) == 4
    for section in tables:
        rows = [line for line in section.splitlines() if line.startswith("| ")][1:]
        assert rows
        assert [row for row in rows if "`test_" not in row] == []


def test_every_hole_of_the_second_audit_has_a_probe() -> None:
    section = PAGE.split("\n## Probes of the audits")[1].split("\n## ")[0]
    assert set(re.findall(r"S(\d+)", section)) == {str(number) for number in range(1, 19)}


def test_the_page_names_every_file_of_security_tests() -> None:
    """A probe that no promise names is a promise that nobody reads."""
    files = {path.stem for path in (ROOT / "tests" / "security").glob("test_*.py")}
    assert {name for name in files if name not in PAGE} == set()
