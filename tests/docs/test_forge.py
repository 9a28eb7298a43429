"""The files of a public forge name what exists: targets of make, commands of hermes, supported versions."""

from __future__ import annotations

import os
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from hermes.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def read(path: Path) -> Any:
    return YAML(typ="safe").load(path.read_text())


def commands(path: Path) -> Iterator[str]:
    """The shell lines of a workflow."""
    for job in read(path)["jobs"].values():
        for step in job["steps"]:
            yield from step.get("run", "").splitlines()


@pytest.mark.parametrize("path", WORKFLOWS, ids=[path.name for path in WORKFLOWS])
def test_a_workflow_runs_what_exists(path: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    lines = list(commands(path))
    assert lines
    for line in lines:
        for target in re.findall(r"\bmake ([a-z-]+)", line):
            assert target in targets, line
        for command in re.findall(r"(?:bin/hermes|run --rm hermes) ([a-z-]+)", line):
            assert command in COMMANDS, line
        for script in re.findall(r"\bsh (\S+\.sh)", line):
            assert (ROOT / script).is_file(), line


def test_the_workflows_are_checked_by_actionlint() -> None:
    jobs = read(ROOT / ".github/workflows/tests.yml")["jobs"]
    steps = [step.get("uses", "") for step in jobs["workflows"]["steps"]]
    assert any(step.startswith("docker://rhysd/actionlint:") for step in steps)


def test_the_oldest_supported_python_is_tested() -> None:
    oldest = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    versions = read(ROOT / ".github/workflows/tests.yml")["jobs"]["test"]["strategy"]["matrix"]["python"]
    assert oldest == f">={versions[0]}"


def test_the_hooks_of_pre_commit_are_those_of_make_check() -> None:
    hooks = read(ROOT / ".pre-commit-config.yaml")["repos"][0]["hooks"]
    check = (ROOT / "Makefile").read_text().partition("\ncheck:")[2].partition("\n\n")[0]
    tools = {line.split()[0].partition("/")[2] for line in check.splitlines()[1:]}
    assert {hook["entry"].split()[0].rpartition("/")[2] for hook in hooks} == tools


def test_the_notes_of_a_release_have_what_is_unreleased_too(tmp_path: Path) -> None:
    """With a heading of its own for the version, the part under Unreleased was left out."""
    script = (ROOT / "scripts/release.sh").read_text()
    (command,) = re.findall(r"^awk .*?(?=>dist/notes\.md)", script, re.MULTILINE | re.DOTALL)
    (tmp_path / "CHANGELOG.md").write_text(
        "# Changelog\n\n## Unreleased\n\n- new\n\n## 0.1.0 (unreleased)\n\n- first\n\n## 0.1.01\n\n- x\n"
    )
    notes = subprocess.run(
        ["sh", "-c", command],
        cwd=tmp_path,
        env={**os.environ, "version": "0.1.0"},
        capture_output=True,
        text=True,
    )
    assert notes.stdout.split("\n") == ["", "- new", "", "", "- first", "", ""], notes.stderr


def test_forms_ask_for_the_report_that_a_command_writes() -> None:
    assert "hermes bug-report" in (ROOT / ".github/ISSUE_TEMPLATE/bug.yml").read_text()
    assert "bug-report" in COMMANDS
