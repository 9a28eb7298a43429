"""The detached process that owns a run.

    python -m hermes.rl.supervise.supervisor RUN_DIR

It returns at once and leaves two processes behind: the supervisor, and a keeper that starts another one if it
is killed. Two supervisors never own a run at the same time: the second finds the lock taken and leaves.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from hermes.core.filelock import FileLock
from hermes.errors import HermesError
from hermes.rl.run import RlRun, RunState, now_ms
from hermes.rl.supervise.processes import signal_group

_MOST_DEATHS = 20
"""Supervisors of one run that may die before it is given up."""
_PAUSE_S = 0.3


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    detach(RlRun(folder.parents[1], folder.name), own)


def detach(run: RlRun, work: Callable[[RlRun], None]) -> None:
    """Does the work in a process of its own, again and again until it ends well; returns at once."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    if os.fork() == 0:
        with contextlib.suppress(KeyboardInterrupt):
            _keep(run, work)
        os._exit(0)


def _keep(run: RlRun, work: Callable[[RlRun], None]) -> None:
    for _ in range(_MOST_DEATHS):
        child = os.fork()
        if child == 0:
            os._exit(_attempt(run, work))
        _, how = os.waitpid(child, 0)
        if how == 0:
            return
        time.sleep(_PAUSE_S)
    _give_up(run)


def _attempt(run: RlRun, work: Callable[[RlRun], None]) -> int:
    try:
        with sole_owner(run) as mine:
            if mine:
                work(run)
    except Exception:  # the keeper decides what comes next; the log has the trace
        logging.getLogger(__name__).exception("the supervisor failed")
        return 1
    return 0


def own(run: RlRun) -> None:
    """Supervises the run to its end."""
    from hermes.rl.supervise.plan import RunPlan
    from hermes.rl.supervise.supervision import RunSupervisor

    try:
        plan = RunPlan(run)
        supervisor = RunSupervisor(
            run,
            plan.parts,
            move=plan.move,
            cwd=plan.cwd,
            max_hours=plan.max_hours,
            over_budget=plan.over_budget,
            progress=plan.progress,
            starving=plan.starving,
        )
    except HermesError as error:
        _fail(run, error.message)
        return
    supervisor.supervise()


@contextlib.contextmanager
def sole_owner(run: RlRun) -> Iterator[bool]:
    """Whether this process may own the run; the lock goes with the process."""
    lock = FileLock(run.folder / "supervisor.lock")
    try:
        yield lock.acquire(blocking=False)
    finally:
        lock.release()


def _give_up(run: RlRun) -> None:
    for part in run.status().parts.values():
        if part.process is not None and part.process.alive():
            signal_group(part.process, signal.SIGKILL)
    _fail(run, f"its supervisor died {_MOST_DEATHS} times")


def _fail(run: RlRun, reason: str) -> None:
    status = run.status()
    if not status.state.ended:
        run.write_status(
            replace(status, state=RunState.FAILED, reason=reason, ended_at_ms=now_ms()).noted(reason)
        )


if __name__ == "__main__":
    main()
