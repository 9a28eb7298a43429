"""The scripts that write docs/tasks.md write it as the tasks and environments of a folder are."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.sandbox.open import unusable_reason
from tests.envs.harbor.folders import write_task
from tests.envs.openenv.world import FOLDER, package_python

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/tasks.md"
CHECKOUTS = "HERMES_TASK_CHECKOUTS"
"""Names a folder of checkouts, as the script takes them, with which the page itself is compared."""
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(unusable_reason("bubblewrap") is not None, reason="it needs bubblewrap"),
]


def write(script: str, *arguments: str | Path) -> None:
    words = [sys.executable, str(ROOT / "scripts/docs" / script), *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def lines(page: Path, repository: str) -> list[str]:
    return [line for line in page.read_text("utf-8").splitlines() if line.startswith(f"| {repository}")]


def test_the_table_of_tasks_is_what_a_check_of_them_finds(tmp_path: Path) -> None:
    page, folder = tmp_path / "tasks.md", tmp_path / "checkouts"
    shutil.copy(PAGE, page)
    write_task(folder / "an-owner+one/tasks/good")
    write_task(folder / "an-owner+one/tasks/gpu", toml="[environment]\ngpus = 1")
    write_task(folder / "an-owner+two", test="echo 0 > /logs/verifier/reward.txt; echo 'a | b'")
    write("harbor_tasks.py", folder, "--place", "bubblewrap", "--page", page)
    gpu = "environment.gpus = 1: no GPU can be given to a task."
    assert lines(page, "an-owner") == [
        "| an-owner/one | tasks/good | bubblewrap | 1 | 0 |  |",
        f"| an-owner/one | tasks/gpu | - | - | - | {gpu} |",
        "| an-owner/two | / | bubblewrap | 0 | 0 | the reference solution earns 0: a ¦ b |",
    ]
    others = [line for line in page.read_text("utf-8").splitlines() if not line.startswith("| an-owner")]
    masked = re.compile(r"^\d+|\d+ (?=tasks of|public|were)|(?<=Of )\d+")
    before = [masked.sub("N", line) for line in PAGE.read_text("utf-8").splitlines()]
    assert [masked.sub("N", line) for line in others] == before, "all but the counts is as it was"
    shutil.rmtree(folder)
    write_task(folder / "an-owner+one/tasks/good", test="true")
    write("harbor_tasks.py", folder, "--place", "bubblewrap", "--page", page)
    (row, _) = lines(page, "an-owner")
    assert "| bubblewrap | - | - | after the reference solution, the tests wrote neither" in row


def test_the_table_of_environments_is_what_a_play_of_them_finds(tmp_path: Path) -> None:
    python = package_python()
    page, folder = tmp_path / "tasks.md", tmp_path / "checkouts"
    shutil.copy(PAGE, page)
    shutil.copytree(FOLDER / "guess_env", folder / "an-owner+one/guess_env")
    (folder / "an-owner+two/server").mkdir(parents=True)
    (folder / "an-owner+two/server/app.py").write_text("import no_such_package\n")
    write("openenv_environments.py", folder, "--python", python, "--page", page)
    guess, broken = lines(page, "an-owner")
    assert guess.startswith("| an-owner/one | guess_env | guess |") and guess.endswith("|  |")
    assert "No module named 'no_such_package'" in broken
    assert "1 were played" in page.read_text("utf-8")


@pytest.mark.skipif(CHECKOUTS not in os.environ, reason=f"{CHECKOUTS} names no folder of checkouts")
def test_the_page_is_what_the_script_writes_for_these_checkouts(tmp_path: Path) -> None:
    page = tmp_path / "tasks.md"
    shutil.copy(PAGE, page)
    folder = Path(os.environ[CHECKOUTS])
    wheels = ("--wheels", folder / "wheels") if (folder / "wheels").is_dir() else ()
    write("harbor_tasks.py", folder, "--place", "bubblewrap", "--page", page, *wheels)
    assert page.read_text("utf-8") == PAGE.read_text("utf-8")
