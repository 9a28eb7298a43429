"""The recorded fields of the trainers' configurations are those of the packages themselves, installed afresh.

Without what they need to train: a folder of their own, no dependencies but those that reading a schema takes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hermes.data.recipes import RECIPES

ROOT = Path(__file__).parents[3]
KEYS = Path(__file__).parent / "keys"
READING_TAKES = ("omegaconf", "antlr4-python3-runtime==4.9.*")
"""What LLaMA-Factory's arguments are read with."""


@pytest.fixture(scope="module")
def trainers(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The versions that the recipes name, as a folder for the module path."""
    folder = tmp_path_factory.mktemp("trainers")
    asked = [f"{each.package}=={each.checked_with}" for each in RECIPES.values() if each.package != "trl"]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--target", str(folder)]
    done = subprocess.run([*pip, *asked, *READING_TAKES], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"the packages cannot be installed here: {done.stderr.strip()[-300:]}")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_packages_have_the_fields_that_were_recorded(trainers: Path, tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(trainers)}
    command = [sys.executable, str(ROOT / "scripts/recipe_keys.py"), str(tmp_path)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "passed over" not in done.stderr, done.stderr
    for recipe in RECIPES.values():
        found, known = (
            json.loads((folder / f"{recipe.package}.json").read_text()) for folder in (tmp_path, KEYS)
        )
        assert (found["version"], found["keys"]) == (known["version"], known["keys"])


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_packages_accept_the_recipes(trainers: Path) -> None:
    """The checks of test_recipes.py that are skipped where a package is not installed."""
    env = {**os.environ, "PYTHONPATH": str(trainers)}
    which = "itself_accepts or installed_package"
    command = [sys.executable, "-m", "pytest", "-q", "-rs", str(Path(__file__).parent / "test_recipes.py")]
    done = subprocess.run([*command, "-k", which], env=env, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:]
    assert "SKIPPED" not in done.stdout, done.stdout[-2000:]
