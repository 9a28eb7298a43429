"""Many kills each of engine, trainer and supervisor of runs at work: the books are those of a quiet run.

Engine and trainer are killed at work and again while they start, a supervisor at any moment of a run, its
start included. Several runs of one home are at work at a time.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import pytest

from hermes.rl.process import ProcessId
from hermes.rl.run import RlRun, RunState, last_step
from tests.rl.books import check_books, is_beyond
from tests.rl.conftest import MakeHome
from tests.rl.world import how_it_ended, start_run
from tests.security.many_kills import KILLS, account

STEPS = {"engine": 24, "trainer": 24, "supervisor": 12}
"""Of a run."""
RUNS_AT_ONCE = 4
MOMENTS_S = (1.0, 6.0, 6.0)
"""Kills of a part before its next step, each within so many seconds of that step or of its start. Five ends
of a part without progress would end the run."""
SUPERVISOR_MOMENTS_S = ((10, 3.0), (8, 2.0))
"""Kills of the supervisor of a run, each within so many seconds of its start: while the run starts, and then
at work. A run whose supervisor has died 20 times is ended."""
ENDED = "ended"


@dataclass
class Killer:
    """Kills one kind of process until so many are dead. Its iterators yield while they wait."""

    victim: str
    left: int
    chance: random.Random
    killed: set[ProcessId] = field(default_factory=set)
    """On a busy machine a process may run on for a moment."""

    def attend(self, run: RlRun) -> Iterator[None]:
        """Kills in the run as it goes on, waits for its end and checks its books."""
        yield from self._kill_supervisors(run) if self.victim == "supervisor" else self._kill_parts(run)
        yield from until(lambda: run.status().state.ended)
        assert how_it_ended(run) == "completed: None"
        check_books(run, STEPS[self.victim])

    def _kill_parts(self, run: RlRun) -> Iterator[None]:
        # A part that was killed resumes from a checkpoint: the newest step may become an older one.
        made = 0
        while self.left and not run.status().state.ended:
            made = max(made, last_step(run))
            yield from until(lambda made=made: is_beyond(run, made))
            made = last_step(run)
            for longest_s in MOMENTS_S:
                yield from self._kill_within(run, longest_s)

    def _kill_supervisors(self, run: RlRun) -> Iterator[None]:
        for kills, longest_s in SUPERVISOR_MOMENTS_S:
            for _ in range(kills):
                yield from self._kill_within(run, longest_s)
            yield from until(lambda: run.status().state is not RunState.STARTING)

    def _kill_within(self, run: RlRun, longest_s: float) -> Iterator[None]:
        """Waits for the process to be there, then for a moment, and kills it."""
        yield from until(lambda: run.status().state.ended or self._process(run) is not None)
        moment_s = time.monotonic() + self.chance.uniform(0, longest_s)
        yield from until(lambda: time.monotonic() >= moment_s)
        process = self._process(run)
        if process is not None and self.left and not run.status().state.ended:
            os.kill(process.pid, signal.SIGKILL)
            self.killed.add(process)
            self.left -= 1

    def _process(self, run: RlRun) -> ProcessId | None:
        """None: it is dead, and the next one is not started."""
        status = run.status()
        if self.victim == "supervisor":
            process = status.supervisor
        else:
            part = status.processes.get(self.victim)
            process = part.process_id if part else None
        is_next = process is not None and process not in self.killed and process.alive()
        return process if is_next else None


def until(condition: Callable[[], bool]) -> Iterator[None]:
    while not condition():
        yield


@pytest.mark.slow
@pytest.mark.timeout(14_400)
@pytest.mark.parametrize("victim", ["engine", "trainer", "supervisor"])
def test_runs_end_with_every_batch_trained_once(home_with: MakeHome, victim: str) -> None:
    home = home_with(total_steps=STEPS[victim], save_checkpoint_interval=3)
    killer, runs = Killer(victim, KILLS, random.Random(23)), 0
    attended: list[Iterator[None]] = []
    with account(victim) as figures:
        while killer.left or attended:
            if killer.left and len(attended) < RUNS_AT_ONCE:
                attended.append(killer.attend(start_run(home)))
                runs += 1
            attended = [attending for attending in attended if next(attending, ENDED) is not ENDED]
            time.sleep(0.02)
        figures["runs"] = runs
        figures["steps, each made once with its own batch"] = runs * STEPS[victim]
