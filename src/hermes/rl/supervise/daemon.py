"""The detached process that supervises a run.

    python -m hermes.rl.supervise.daemon RUN_DIR

It returns at once and leaves two processes behind: the supervisor, and a keeper that forks another one, with
the modules loaded already, if it is killed. A run has one supervisor at a time: a second one finds the lock
taken and exits.
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

from hermes.core.clock import now_ms
from hermes.disk.filelock import FileLock
from hermes.errors import HermesError
from hermes.rl.process import signal_group
from hermes.rl.run import RlRun, RunState
from hermes.rl.supervise.plan import RunPlan
from hermes.rl.supervise.supervisor import RunSupervisor
from hermes.safety.output.logs import log_to_stderr

_MAX_DEATHS = 20
"""Supervisors of one run that may die before the run fails."""
_PAUSE_S = 0.3


def main() -> None:
    folder = Path(sys.argv[1]).absolute()
    detach(RlRun(folder.parents[1], folder.name), supervise_run)


def detach(run: RlRun, work: Callable[[RlRun], None]) -> None:
    """Runs `work` in a detached process, again until it exits with 0; returns at once."""
    log_to_stderr(logging.INFO)
    if os.fork() == 0:
        with contextlib.suppress(KeyboardInterrupt):
            _keep_alive(run, work)
        os._exit(0)


def _keep_alive(run: RlRun, work: Callable[[RlRun], None]) -> None:
    for _ in range(_MAX_DEATHS):
        child = os.fork()
        if child == 0:
            os._exit(_attempt(run, work))
        _, exit_status = os.waitpid(child, 0)
        if exit_status == 0:
            return
        time.sleep(_PAUSE_S)
    _kill_and_fail(run)


def _attempt(run: RlRun, work: Callable[[RlRun], None]) -> int:
    try:
        with supervisor_lock(run) as acquired:
            if acquired:
                work(run)
    except Exception:  # the keeper starts another one; the log has the trace
        logging.getLogger(__name__).exception("the supervisor failed")
        return 1
    return 0


def supervise_run(run: RlRun) -> None:
    """Supervises the run to its end."""
    try:
        plan = RunPlan(run)
        supervisor = RunSupervisor(
            run,
            plan.processes,
            reassign_port=plan.reassign_port,
            cwd=plan.cwd,
            max_hours=plan.max_hours,
            over_budget=plan.over_budget,
            progress=plan.progress,
            is_starving=plan.is_starving,
        )
    except HermesError as error:
        _fail(run, error.message)
        return
    supervisor.supervise()


@contextlib.contextmanager
def supervisor_lock(run: RlRun) -> Iterator[bool]:
    """Yields whether this process may supervise the run; the lock ends with the process."""
    lock = FileLock(run.folder / "supervisor.lock")
    try:
        yield lock.acquire(blocking=False)
    finally:
        lock.release()


def _kill_and_fail(run: RlRun) -> None:
    for process in run.status().processes.values():
        if process.process_id is not None and process.process_id.alive():
            signal_group(process.process_id, signal.SIGKILL)
    _fail(run, f"its supervisor died {_MAX_DEATHS} times")


def _fail(run: RlRun, reason: str) -> None:
    status = run.status()
    if not status.state.ended:
        run.write_status(
            replace(status, state=RunState.FAILED, reason=reason, ended_at_ms=now_ms()).with_event(reason)
        )


if __name__ == "__main__":
    main()
