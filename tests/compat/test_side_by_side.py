"""Atropos's own environment files in the original library and in Hermes: the same groups and metrics.

Set HERMES_TEST_ATROPOS_CHECKOUT to a checkout of NousResearch/atropos. The original runs in an environment of
its own, which is made under .compat; HERMES_TEST_ATROPOS_PYTHON names another one with the same packages.
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
)
"""The original and what its files import."""
FILES = (
    "reasoning_gym_environment.py",
    "tool_use_interleaved_thinking.py",
    "ifeval_eval.py",
    "blackjack_env_thinking.py",
    "arc_eval.py",
    "lean_proof_env.py",
)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.skipif(not CHECKOUT, reason="HERMES_TEST_ATROPOS_CHECKOUT names the files")
def test_public_files_give_the_same_in_the_original_and_here(bundled_home: Path, tmp_path: Path) -> None:
    python = PYTHON or str(venv_python("atropos", *PACKAGES))
    command = [sys.executable, str(ROOT / "scripts" / "atropos"), CHECKOUT, "--python", python]
    options = ["--tokenizer", str(model_folder(bundled_home)), "--folder", str(tmp_path), "--limit-s", "600"]
    done = subprocess.run([*command, *options, "--only", *FILES], capture_output=True, text=True)
    results = json.loads((tmp_path / "results.json").read_text())
    assert {Path(result["file"]).name for result in results} >= set(FILES), done.stderr
    worse = [result for result in results if result["verdict"] in ("differs", "only the original")]
    assert not worse, worse
    assert sum(result["verdict"] == "equal" for result in results) >= len(FILES)


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
