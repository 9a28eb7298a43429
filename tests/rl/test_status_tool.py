"""`rl_check_status` for the agent: a healthy run every 30 minutes, any other one always."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hermes.config.load import Config, load
from hermes.rl.plan import write_config
from hermes.rl.processes import ProcessId
from hermes.rl.run import Run, RunState, Status, now_ms
from hermes.rl.tool_answers import CHECK_EVERY_S, check_status

ID = "0123abcd"


def _config(home: Path, state: RunState) -> Config:
    """A home with a run in that state, whose supervisor is this very process."""
    run = Run(home, ID)
    about = {"environment": "letters", "service": None, "ports": {"api": 1, "engine": 2}}
    write_config(run, {"env": {"wandb_name": "letters-1", "total_steps": 8}, "run": about})
    reason = "trainer exited (1): no key" if state is RunState.FAILED else None
    supervisor = ProcessId.of(os.getpid())
    run.write_status(Status(state, reason, started_at_ms=now_ms(), supervisor=supervisor))
    return load(environ={"HERMES_HOME": str(home)})


def test_a_healthy_run_can_be_asked_every_thirty_minutes(tmp_path: Path) -> None:
    config = _config(tmp_path, RunState.RUNNING)
    first, second = (check_status(config, {"run_id": ID}, "task") for _ in range(2))
    assert (first["status"], first["environment"]) == ("running", "letters") and "rate_limited" not in first
    assert second["rate_limited"] and CHECK_EVERY_S - 60 < second["next_check_in_seconds"] <= CHECK_EVERY_S
    assert check_status(config, {"run_id": ID}, "another task")["rate_limited"], "the limit is the run's"
    long_ago = now_ms() - int(CHECK_EVERY_S * 1000) - 1
    (Run(tmp_path, ID).folder / "checked").write_text(str(long_ago))
    assert "rate_limited" not in check_status(config, {"run_id": ID}, "task")


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.FAILED, RunState.STOPPED, RunState.COMPLETED])
def test_a_run_that_is_not_healthy_can_always_be_asked(tmp_path: Path, state: RunState) -> None:
    config = _config(tmp_path, state)
    for _ in range(3):
        told = check_status(config, {"run_id": ID}, "task")
        assert told["status"] == state.value and "rate_limited" not in told
        assert (told.get("error") == "trainer exited (1): no key") == (state is RunState.FAILED)
