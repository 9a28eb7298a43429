"""Whole runs that cannot learn, lose their starter or are told to stop: they end with a reason, and saved."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from hermes.rl.results import saved_checkpoints
from hermes.rl.run import find_run, last_step, read_metrics
from tests.engine.http.engine_process import launch
from tests.rl.conftest import MakeHome
from tests.rl.world import answer, how_it_ended, start_run
from tests.training.proxy import proxy

WORTHLESS = str(Path(__file__).parent / "sabotage" / "worthless.py")


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_without_any_signal_ends_and_says_so(home_with: MakeHome) -> None:
    home = home_with(total_steps=1000)
    run = start_run(home, environment=WORTHLESS)
    assert how_it_ended(run).startswith("failed: trainer exited (1): no signal: in all 25 batches ")
    rows = list(read_metrics(run.metrics_path))
    assert len(rows) == 24 and all(row["health/group_signal"] == 0 for row in rows)
    causes = {each["cause"]: each for each in answer(home, "rl", "doctor", run.run_id)}
    assert "0% of the groups have unequal scores" in causes["no signal"]["evidence"]
    assert "SFT" in causes["no signal"]["advice"]


STARTER = """
import time
from hermes.config.load import load
from hermes.rl import tool_handlers
print(tool_handlers.start_training(load(), {}, "task")["run_id"], flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_outlives_the_agent_that_started_it_and_its_terminal(home_with: MakeHome) -> None:
    home = home_with()
    for words in (("select", "letters"), ("config", "group_size", "4"), ("config", "batch_size", "8")):
        answer(home, "rl", *words)
    environ = {**os.environ, "HERMES_HOME": str(home), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", STARTER]
    agent = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert agent.stdout is not None
    run = find_run(home, agent.stdout.readline().strip())
    assert not run.status().state.ended
    os.killpg(agent.pid, signal.SIGKILL)
    assert agent.wait() == -signal.SIGKILL
    assert how_it_ended(run) == "completed: None"


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_run_that_is_stopped_in_the_middle_of_a_step_keeps_what_it_has_learned(
    home_with: MakeHome, tmp_path: Path, model: Path
) -> None:
    """Its third step takes longer than the supervisor waits for other parts."""
    updates, in_a_step = 0, threading.Event()

    def slow_third(path: str, body: Any) -> Any:
        nonlocal updates
        if path.endswith("/optim_step"):
            updates += 1
            if updates == 3:
                in_a_step.set()
                time.sleep(8)
        return body

    engine = launch(model, tmp_path / "service")
    with proxy(engine.url, slow_third) as service:
        try:
            home = home_with(total_steps=1000, save_checkpoint_interval=500)
            run = start_run(home, env={"TINKER_BASE_URL": service})
            assert in_a_step.wait(120)
            assert answer(home, "rl", "stop", run.run_id)["status"] == "stopped"
            assert [each["step"] for each in saved_checkpoints(run)] == [last_step(run)] == [3]
            folder = Path(answer(home, "rl", "weights", run.run_id)["path"])
            assert (folder / "adapter_model.safetensors").stat().st_size > 0
        finally:
            engine.kill()
