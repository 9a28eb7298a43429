"""Where a run's numbers go, and where they do not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.process import failure
from tests.rl.conftest import MakeHome
from tests.rl.world import answer, change_settings, hermes, how_it_ended, start_run

RECORDER = """
import json, os
run = None
class Error(Exception): pass
def init(**about):
    if not os.environ.get("WANDB_API_KEY"):
        raise Error("No API key configured")
    with open(os.environ["WANDB_SEEN"], "a") as file:
        file.write(json.dumps([about["project"], about.get("mode", os.environ.get("WANDB_MODE"))]) + "\\n")
def log(*values, **more): pass
finish = define_metric = log
"""
"""In the place of the package: it notes who would have been connected to W&B, and how."""


def _reports(home_with: MakeHome, tmp_path: Path, name: str, **values: Any) -> list[list[str | None]]:
    """[project, mode] of everything that a run opens at W&B with a stored key."""
    packages, seen = tmp_path / "packages", tmp_path / f"{name}.jsonl"
    (packages / "wandb").mkdir(parents=True, exist_ok=True)
    (packages / "wandb" / "__init__.py").write_text(RECORDER)
    environ = {"PYTHONPATH": str(packages), "WANDB_SEEN": str(seen)}
    home = home_with(name, total_steps=2, wandb_project="mine", **values)
    (home / ".env").write_text(f"WANDB_API_KEY={'0' * 40}\n")
    run = start_run(home, env=environ)
    assert how_it_ended(run) == "completed: None"
    assert answer(home, "rl", "results", run.run_id)["wandb_project"] == "mine"
    assert (run.folder / "tensorboard").is_dir() == ("tensorboard" in run.config().tinker.sinks)
    return [json.loads(line) for line in seen.read_text().splitlines()] if seen.exists() else []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_key_uploads_a_run_unless_it_is_told_not_to(home_with: MakeHome, tmp_path: Path) -> None:
    assert ["mine", "online"] in _reports(home_with, tmp_path, "online")
    assert _reports(home_with, tmp_path, "nothing", use_wandb=False, sinks=["tensorboard"]) == []
    offline = _reports(home_with, tmp_path, "offline", sinks=["wandb-offline"])
    assert ["mine", "offline"] in offline and {mode for _, mode in offline} == {"offline"}


def test_a_sink_that_there_is_none_of_is_refused(home_with: MakeHome) -> None:
    home = home_with()
    answer(home, "rl", "select", "letters")
    change_settings(home, values={"sinks": ["paper"]})

    what, _ = failure(hermes(home, "rl", "start"), 2)
    assert "tinker.sinks" in what and "'tensorboard'" in what
