"""The bundled library: the quick part of the check, and the names of the seeds."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.skills.catalogue import bundled_skills
from skills_check.hermes_commands import command_problem, hermes_commands
from skills_check.skill_check import check_skill

ROOT = Path(__file__).parents[2]


def test_every_bundled_skill_passes_the_quick_check() -> None:
    commands = hermes_commands()
    reports = [check_skill(skill, commands, None) for skill in bundled_skills().skills]
    problems = [f"{report.skill.name}/{problem}" for report in reports for problem in report.problems]
    assert problems == []


def test_the_table_of_the_documentation_has_the_names_and_skills_of_today() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/skills_table.py", "--check"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_every_bundled_skill_passes_the_whole_check(tmp_path: Path) -> None:
    home = os.environ.get("HERMES_HOME", str(tmp_path))
    done = subprocess.run(
        [sys.executable, "-m", "skills_check", "--all"],
        env={**os.environ, "HERMES_HOME": home, "PYTHONPATH": str(ROOT / "scripts")},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["batch", "--dataset-file", "x.jsonl"], None),
        (["batch", "--dataset_file=x.jsonl"], None),
        (["rate", "last", "good"], None),
        (["rl", "Train SmolLM2 on calculator"], None),
        (["-q", "What is this?", "--json"], None),
        (["rl", "strat"], "there is no command 'hermes rl strat' (nearest: start)"),
        (["skills", "check", "--jso"], "hermes skills check has no option --jso (nearest: --json)"),
        (["export", "--format"], "hermes export --format needs a value"),
    ],
)
def test_command_lines_of_hermes_are_checked_without_running_them(
    words: list[str], problem: str | None
) -> None:
    actual = command_problem(words)
    assert actual == problem if problem is None else problem in (actual or "")
