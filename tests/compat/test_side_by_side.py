"""Atropos's own environment files in the original library and in Hermes: the same groups and metrics.

Set HERMES_TEST_ATROPOS_CHECKOUT to a checkout of NousResearch/atropos. The original runs in an environment of
its own, which is made under .compat; HERMES_TEST_ATROPOS_PYTHON names another one with the same packages. All
files take hours; words in HERMES_TEST_ATROPOS_FILES select some. What docs/compat.md calls equal has to be.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.models.local.bundled import model_folder
from tests.compat.venvs import venv_python
from tests.compat.world import ROOT

CHECKOUT = os.environ.get("HERMES_TEST_ATROPOS_CHECKOUT", "")
PYTHON = os.environ.get("HERMES_TEST_ATROPOS_PYTHON", "")
PACKAGES = (
    "atroposlib==0.4.0",
    "transformers<5",
    "reasoning-gym",
    "langdetect",
    "beautifulsoup4",
    "lxml",
    "scikit-learn",
    "pandas",
    "pillow",
    "toml",
    "xmltodict",
    "asteval",
    "gymnasium==1.0.0",
    "mathgenerator",
    "pennylane",
    "smolagents",
    "tavily-python",
)
"""The original and what its files import."""
PAGE = ROOT / "docs" / "compat.md"
ONLY = os.environ.get("HERMES_TEST_ATROPOS_FILES", "").split()
"""Words of which one is in the path of each file that is compared; all files if it is empty."""


def stated_as_equal() -> set[tuple[str, str]]:
    """File and mode of each row of the page that says equal, of those that are compared."""
    table = PAGE.read_text().partition("<!-- scripts/atropos: begin -->")[2]
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]]
        for line in table.splitlines()
        if line.count("|") == 6
    ]
    equal = {(row[0], row[1]) for row in rows if row[4] == "equal"}
    return {pair for pair in equal if not ONLY or any(word in pair[0] for word in ONLY)}


@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
@pytest.mark.skipif(not CHECKOUT, reason="HERMES_TEST_ATROPOS_CHECKOUT names the files")
def test_public_files_give_the_same_in_the_original_and_here(bundled_home: Path, tmp_path: Path) -> None:
    python = PYTHON or str(venv_python("atropos", *PACKAGES))
    command = [sys.executable, str(ROOT / "scripts" / "atropos"), CHECKOUT, "--python", python]
    options = ["--tokenizer", str(model_folder(bundled_home)), "--folder", str(tmp_path), "--limit-s", "300"]
    done = subprocess.run([*command, *options, "--only", *ONLY], capture_output=True, text=True)
    results = json.loads((tmp_path / "results.json").read_text())
    equal = {(result["file"], result["mode"]) for result in results if result["verdict"] == "equal"}
    assert stated_as_equal() and stated_as_equal() <= equal, (stated_as_equal() - equal, done.stderr)
    lost = [result for result in results if result["verdict"] == "only the original"]
    assert not lost, lost


def test_the_page_lists_files_that_are_equal() -> None:
    files = {Path(file).name for file, _ in stated_as_equal()}
    assert ONLY or files >= {
        "reasoning_gym_environment.py",
        "tool_use_interleaved_thinking.py",
        "ifeval_eval.py",
        "blackjack_env_thinking.py",
        "gsm8k_eval.py",
    }


def test_the_comparison_tells_equal_runs_from_different_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "scripts" / "atropos"))
    import compare

    def outcome(*groups: dict[str, object], requests: int = 1) -> object:
        return compare.Outcome(groups, {}, [{"prompt": "x"}] * requests, "", "process")

    group = {"tokens": [[1, 2], [1, 3]], "masks": [[-100, 2], [-100, 3]], "scores": [1.0, 0.0]}
    swapped = {name: values[::-1] for name, values in group.items()}
    assert compare.difference(outcome(group), outcome(swapped)) == ""
    assert compare.difference(outcome(group), outcome({**group, "scores": [1.0, 0.5]})).endswith(
        "scores differ"
    )
    assert compare.difference(outcome(group, group), outcome(group)) == "2 groups and 1"
    assert compare.difference(outcome(group), outcome(group, requests=2)) != ""
    mixed = {**group, "scores": [0.0, 1.0]}
    assert compare.difference(outcome(group), outcome(mixed)) != "", "a score belongs to its sequence"
