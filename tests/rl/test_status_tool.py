"""`rl_check_status` for the agent: a healthy run every 30 minutes, any other one always."""

from __future__ import annotations

import json
import os
import subprocess
import time
from pathlib import Path

import pytest

from hermes.config.load import Config, load
from hermes.core.clock import now_ms
from hermes.rl.process import ProcessId
from hermes.rl.run import ProcessStatus, RlRun, RunState, RunStatus
from hermes.rl.run_config import RunConfig
from hermes.rl.tool_handlers import CHECK_EVERY_S, check_status

ID = "0123abcd"


def _config(home: Path, state: RunState, *steps_ago_s: float, trainer: ProcessStatus | None = None) -> Config:
    """A home with a run in that state, whose supervisor and trainer are this very process."""
    run = RlRun(home, ID)
    about = {"environment": "letters", "service": None, "ports": {"api": 1, "engine": 2}}
    RunConfig.parse({"env": {"wandb_name": "letters-1", "total_steps": 8}, "run": about}, "test").write(
        run.folder
    )
    reason = "trainer exited (1): no key" if state is RunState.FAILED else None
    supervisor = ProcessId.of(os.getpid())
    rows = [{"step": number, "time_s": time.time() - ago_s} for number, ago_s in enumerate(steps_ago_s, 1)]
    run.metrics_path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    processes = {"trainer": trainer or ProcessStatus(supervisor, ready=True, starts=1)}
    run.write_status(
        RunStatus(state, reason, started_at_ms=now_ms(), supervisor=supervisor, processes=processes)
    )
    return load(environ={"HERMES_HOME": str(home)})


def test_a_healthy_run_can_be_asked_every_thirty_minutes(tmp_path: Path) -> None:
    config = _config(tmp_path, RunState.RUNNING, 40, 20)
    first, second = (check_status(config, {"run_id": ID}, "task") for _ in range(2))
    assert (first["status"], first["environment"]) == ("running", "letters") and "rate_limited" not in first
    assert second["rate_limited"] and CHECK_EVERY_S - 60 < second["next_check_in_seconds"] <= CHECK_EVERY_S
    assert check_status(config, {"run_id": ID}, "another task")["rate_limited"], "the limit is the run's"
    long_ago = now_ms() - int(CHECK_EVERY_S * 1000) - 1
    (RlRun(tmp_path, ID).folder / "checked").write_text(str(long_ago))
    assert "rate_limited" not in check_status(config, {"run_id": ID}, "task")


@pytest.mark.parametrize("state", [RunState.STARTING, RunState.FAILED, RunState.STOPPED, RunState.COMPLETED])
def test_a_run_that_is_not_healthy_can_always_be_asked(tmp_path: Path, state: RunState) -> None:
    config = _config(tmp_path, state, 40, 20)
    for _ in range(3):
        told = check_status(config, {"run_id": ID}, "task")
        assert told["status"] == state.value and "rate_limited" not in told
        assert (told.get("error") == "trainer exited (1): no key") == (state is RunState.FAILED)


def _limited(config: Config) -> bool:
    check_status(config, {"run_id": ID}, "task")
    return "rate_limited" in check_status(config, {"run_id": ID}, "task")


def test_a_run_is_healthy_only_once_it_makes_steps_and_as_long_as_it_goes_on_to(tmp_path: Path) -> None:
    hours = 3600.0
    for number, (steps_ago_s, limited) in enumerate(
        [
            ((), False),
            ((20.0,), True),
            ((900.0,), False),
            ((900.0, 880.0), False),
            ((4 * hours, 2 * hours), True),
            ((14 * hours, 12 * hours), False),
        ]
    ):
        config = _config(tmp_path / str(number), RunState.RUNNING, *steps_ago_s)
        assert _limited(config) is limited, steps_ago_s


def test_a_run_with_a_dead_part_is_not_healthy_and_one_whose_part_has_done_its_work_is(
    tmp_path: Path,
) -> None:
    child = subprocess.Popen(["true"])
    dead = ProcessId.of(child.pid)
    child.wait()
    killed, done = ProcessStatus(dead, exit_code=-9, starts=1), ProcessStatus(dead, exit_code=0, starts=1)
    assert not _limited(_config(tmp_path / "killed", RunState.RUNNING, 40, 20, trainer=killed))
    assert _limited(_config(tmp_path / "done", RunState.RUNNING, 40, 20, trainer=done))


def test_a_run_without_a_step_shows_what_the_part_says_that_it_waits_for(tmp_path: Path) -> None:
    config = _config(tmp_path, RunState.STARTING, trainer=ProcessStatus(ProcessId.of(os.getpid()), starts=1))
    log = RlRun(tmp_path, ID).log_path("trainer")
    log.parent.mkdir(parents=True)
    log.write_text("loading\nwaiting for a batch\n")
    told = check_status(config, {"run_id": ID}, "task")
    assert told["last_log_lines"] == ["loading", "waiting for a batch"]
    going = _config(tmp_path, RunState.RUNNING, 20)
    assert "last_log_lines" not in check_status(going, {"run_id": ID}, "task")
