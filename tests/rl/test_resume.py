"""A run that has ended is continued: the same books, more steps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from hermes.config.load import load
from hermes.errors import UsageError
from hermes.rl.results import step_rows
from hermes.rl.resume import resume
from hermes.rl.run import RlRun, RunState, RunStatus
from tests.rl.conftest import MakeHome
from tests.rl.world import ENVIRONMENTS, answer, how_it_ended, start_run


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_completed_run_makes_more_steps_with_the_same_books(home_with: MakeHome) -> None:
    home = home_with(total_steps=3)
    run = start_run(home)
    assert how_it_ended(run) == "completed: None"
    before = step_rows(run)
    answered = answer(home, "rl", "resume", run.run_id, "--set", "total_steps=5")
    assert answered["from_step"] == 3
    assert how_it_ended(run) == "completed: None"
    rows = step_rows(run)
    assert [row["step"] for row in rows] == [1, 2, 3, 4, 5] and rows[:3] == before
    leases = [row["data/lease_id"] for row in rows]
    assert len(set(leases)) == 5, "no batch is trained twice"
    assert [row["optim/optimizer_step"] for row in rows] == [1, 2, 3, 4, 5]
    assert "resumed from step 3" in [event["text"] for event in run.status().events]


def ended_run(home: Path, state: RunState = RunState.STOPPED, step: int = 3) -> RlRun:
    """The record of a run that has ended, without its processes."""
    from hermes.rl.config.resolve import resolve, select

    config = load({}, {"HERMES_HOME": str(home)})
    resolved = resolve(config, select(config, str(ENVIRONMENTS / "letters.py")))
    run = RlRun(home, "0123abcd")
    run.folder.mkdir(parents=True)
    section = {
        **{"run_id": run.run_id, "environment": "letters", "model": resolved.model, "service": None},
        **{"environment_file": str(ENVIRONMENTS / "letters.py"), "ports": {"api": 8000, "engine": 8001}},
    }
    resolved.run_config(section).write(run.folder)
    run.write_status(RunStatus(state, started_at_ms=1_000, ended_at_ms=61_000))
    record = [step, "tinker://a/weights/s", "tinker://a/sampler_weights/s", None, False]
    state_file: dict[str, Any] = {"format": 1, "kind": "rl", "settings": {}, "kept": [record], "best": None}
    (run.folder / "training.json").write_text(json.dumps(state_file))
    return run


@pytest.mark.parametrize(
    ("state", "step", "changes", "message"),
    [
        (RunState.STOPPED, 9, {}, "has made all of its 4 steps"),
        (RunState.STOPPED, 3, {"lora_rank": 8}, "tinker.lora_rank cannot change when a run is resumed"),
        (RunState.FAILED, 3, {"total_steps": "many"}, "env.total_steps = 'many'"),
        (RunState.FAILED, 3, {"no_such": 1}, "there is no field 'no_such'"),
    ],
)
def test_what_cannot_be_resumed_is_said_before_anything_changes(
    home_with: MakeHome, state: RunState, step: int, changes: dict[str, Any], message: str
) -> None:
    home = home_with()
    run = ended_run(home, state, step)
    before = run.config_path.read_text(), run.status()
    with pytest.raises(UsageError, match=message):
        resume(load({}, {"HERMES_HOME": str(home)}), run, changes)
    assert (run.config_path.read_text(), run.status()) == before
