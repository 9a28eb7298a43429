"""Many kills each of engine, trainer and supervisor of runs at work: the books are those of a quiet run."""

from __future__ import annotations

import os
import random
import signal
import time
from functools import partial

import pytest

from hermes.rl.run import RlRun, RunState, last_step
from tests.rl.books import check_books, is_beyond
from tests.rl.conftest import MakeHome
from tests.rl.world import how_it_ended, start_run
from tests.security.many_kills import KILLS, account
from tests.waiting import wait_until

STEPS = 40
MOST_IN_A_RUN = 15
"""A run whose supervisor has died 20 times is ended, with that as the reason."""


@pytest.mark.slow
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("victim", ["engine", "trainer", "supervisor"])
def test_runs_end_with_every_batch_trained_once(home_with: MakeHome, victim: str) -> None:
    chance, kills, runs = random.Random(23), 0, 0
    with account(victim) as figures:
        while kills < KILLS:
            runs += 1
            run = start_run(home_with(f"home-{runs}", total_steps=STEPS, save_checkpoint_interval=3))
            wait_until(lambda run=run: run.status().state is not RunState.STARTING)
            enough = min(KILLS, kills + MOST_IN_A_RUN)
            while kills < enough and not run.status().state.ended:
                kills += _kill_after_progress(run, victim, chance)
            assert how_it_ended(run) == "completed: None"
            check_books(run, STEPS)
        figures["runs"] = runs
        figures["steps, each made once with its own batch"] = runs * STEPS


def _kill_after_progress(run: RlRun, victim: str, chance: random.Random) -> int:
    """1 if the process was killed; five ends of a part without progress would end the run."""
    wait_until(partial(is_beyond, run, last_step(run)))
    time.sleep(chance.uniform(0, 1.0))
    status = run.status()
    process = status.supervisor if victim == "supervisor" else status.processes[victim].process_id
    if status.state.ended or process is None or not process.alive():
        return 0
    os.kill(process.pid, signal.SIGKILL)
    return 1
