"""kill -9 of each process of a run, at random moments: it ends as if nothing had happened."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial
from pathlib import Path

import pytest

from hermes.rl.run import RunState, last_step
from tests.engine.http.engine_process import launch
from tests.rl.books import check_books, is_beyond
from tests.rl.conftest import MakeHome
from tests.rl.world import how_it_ended, start_run
from tests.waiting import wait_until


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("victim", ["api", "engine", "trainer", "env", "supervisor"])
def test_a_killed_process_does_not_change_how_the_run_ends(home_with: MakeHome, victim: str) -> None:
    run = start_run(home_with(total_steps=20))
    wait_until(lambda: run.status().state is RunState.RUNNING)
    time.sleep(random.uniform(0, 2))
    before = run.status()
    process = before.supervisor if victim == "supervisor" else before.processes[victim].process_id
    assert process is not None and process.alive()
    os.kill(process.pid, signal.SIGKILL)
    assert how_it_ended(run) == "completed: None"
    after = run.status()
    if victim == "supervisor":
        assert after.supervisor != before.supervisor
    else:
        assert after.processes[victim].starts > before.processes[victim].starts
    check_books(run, 20)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_ends_the_same_whatever_is_killed_and_whenever(home_with: MakeHome) -> None:
    steps, chance = 30, random.Random(11)
    run = start_run(home_with(total_steps=steps, save_checkpoint_interval=3))
    killed = []
    for victim in chance.sample(["api", "engine", "trainer", "env", "supervisor"] * 2, 10):
        # Not before there is progress: five ends of a part without any would fail the run.
        made = last_step(run)
        wait_until(partial(is_beyond, run, made))
        time.sleep(chance.uniform(0, 1.5))
        status = run.status()
        process = status.supervisor if victim == "supervisor" else status.processes[victim].process_id
        if not status.state.ended and process is not None and process.alive():
            os.kill(process.pid, signal.SIGKILL)
            killed.append(victim)
    assert how_it_ended(run) == "completed: None", killed
    assert len(killed) >= 5, killed
    check_books(run, steps)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_run_with_a_service_ends_the_same_whoever_is_killed(
    home_with: MakeHome, tmp_path: Path, model: Path
) -> None:
    """The trainer's death takes the environment's sampler with it, the service's every session."""
    service = launch(model, tmp_path / "service")
    try:
        home = home_with(total_steps=12, save_checkpoint_interval=3)
        run = start_run(home, env={"TINKER_BASE_URL": service.url})
        for victim in ("trainer", "service", "env", "trainer"):
            wait_until(partial(is_beyond, run, last_step(run)))
            if victim == "service":
                service.kill()
                service = launch(model, tmp_path / "service", "--port", service.url.rpartition(":")[2])
            elif (process := run.status().processes[victim].process_id) is not None and process.alive():
                os.kill(process.pid, signal.SIGKILL)
        assert how_it_ended(run) == "completed: None"
    finally:
        service.kill()
    check_books(run, 12, tmp_path / "service")
