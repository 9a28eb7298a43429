"""Supervises a run: starts its processes in order of readiness, restarts them, stops them in reverse order.

A supervisor that takes over from a dead one adopts the processes that still run, by pid and start time. A
process that exited in between is started again: every process resumes from its own state on disk, and one
whose work is done exits at once. A run whose disk is full waits for room (`disk_room`).
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from hermes.core.clock import now_ms
from hermes.errors import HermesError
from hermes.rl.machine import DiskRoom
from hermes.rl.process import (
    TAIL_BYTES,
    Exited,
    ProcessHandle,
    ProcessId,
    ProcessSpec,
    last_error,
    read_tail,
)
from hermes.rl.run import CRASH_EVENT, ProcessStatus, RlRun, RunState, RunStatus

_TICK_S = 0.1
_MAX_EXITS = 5
"""Exits of one process, without a trained step in between, after which the run fails."""
_MAX_BACKOFF_S = 20.0
_IDLE_CHECK_S = 20.0
"""How often it is checked whether a process whose work was done is needed again."""
_REMIND_S, _KILL_S = 5.0, 15.0
"""After SIGTERM, or after the time to finish: when SIGTERM is repeated, and when SIGKILL follows."""
_CONFIG_ERROR = 2
"""Exit code of every Hermes command that cannot work as configured: a restart does not help."""

_logger = logging.getLogger(__name__)


class ExitAction(StrEnum):
    """The reaction to a process that has exited."""

    COMPLETE = "complete"
    IDLE = "idle"
    """Its work is done; it is started again only if the run needs it."""
    RESTART = "restart"
    FAIL = "fail"


def exit_action(
    spec: ProcessSpec, exit_code: int | None, explained: bool, affected_by_restart: bool
) -> ExitAction:
    """`exit_code` None: unknown. `explained`: its log ends with an error it raised on purpose.
    `affected_by_restart`: another process was restarted while it ran."""
    if exit_code == 0 and not spec.is_server and spec.is_done():
        return ExitAction.COMPLETE if spec.completes_run else ExitAction.IDLE
    if not exit_code or exit_code < 0:
        return ExitAction.RESTART
    if exit_code == _CONFIG_ERROR:
        return ExitAction.FAIL
    if explained and not affected_by_restart and not spec.is_server:
        return ExitAction.FAIL
    return ExitAction.RESTART


@dataclass
class _ProcessState:
    """The state of a process in the supervisor's memory; a new supervisor does without it."""

    handle: ProcessHandle | None = None
    exits: int = 0
    not_before_s: float = 0.0
    started_s: float = 0.0
    idle: bool = False
    affected_by_restart: bool = False
    log_bytes: int = 0
    """Size of its log when it was started."""


class RunSupervisor:
    def __init__(
        self,
        run: RlRun,
        plan: Callable[[], Sequence[ProcessSpec]],
        *,
        reassign_port: Callable[[str], bool] = lambda name: False,
        cwd: Path,
        max_hours: float | None = None,
        over_budget: Callable[[], str | None] = lambda: None,
        progress: Callable[[], int] = lambda: 0,
        is_starving: Callable[[], bool] = lambda: False,
        idle_check_s: float = _IDLE_CHECK_S,
    ) -> None:
        """`plan` returns the processes in starting order; `reassign_port` gives a process another port if its
        port was in use; `progress` is the number of trained steps; `is_starving`: whether the trainer has
        waited too long for a batch; `over_budget` is the reason to stop the run, if there is one."""
        self._run, self._plan, self._reassign_port, self._progress = run, plan, reassign_port, progress
        self._is_starving, self._idle_check_s = is_starving, idle_check_s
        self._cwd, self._max_hours, self._over_budget = cwd, max_hours, over_budget
        self._specs = tuple(plan())
        self._states = {spec.name: _ProcessState() for spec in self._specs}
        self._status = run.status()
        self._written: RunStatus | None = None
        self._last_progress = progress()
        self._got_signal = False
        self._full_disk: DiskRoom | None = None
        self._write_failed = False

    def supervise(self) -> RunState:
        """Returns the final state once the run has ended; of a run that has, nothing is changed."""
        if (status := self._run.status()).state.ended:
            return status.state
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        recorded = self._status.processes
        self._set(
            supervisor=ProcessId.of(os.getpid()),
            processes={spec.name: recorded.get(spec.name, ProcessStatus()) for spec in self._specs},
        )
        if self._status.state is RunState.PENDING:
            self._set(state=RunState.STARTING)
        else:
            self._add_event("a new supervisor has taken over", CRASH_EVENT)
        if self._status.ending is not None:
            self._shut_down(self._status.ending, self._status.reason)
        while not self._status.state.ended or self._status != self._written:
            if not self._status.state.ended:
                self._tick()
            self._write()
            time.sleep(_TICK_S)
        return self._status.state

    def _tick(self) -> None:
        if (reason := self._stop_reason()) is not None:
            self._shut_down(RunState.STOPPED, reason)
            return
        if (step := self._progress()) > self._last_progress:
            self._last_progress = step
            for state in self._states.values():
                state.exits = 0
        if self._full_disk is not None and self._full_disk.has_room_again():
            self._full_disk = None
            self._set(waiting=None)
            self._add_event("the disk has room again; the run goes on")
        for index, spec in enumerate(self._specs):
            self._advance(spec, self._specs[:index])
            if self._status.state.ended:
                return
        if self._status.state is RunState.STARTING and all(map(self._is_up, self._specs)):
            self._set(state=RunState.RUNNING)
            self._add_event("every process is ready")

    def _stop_reason(self) -> str | None:
        if self._run.stop_path.exists():
            return "stopped on request"
        if self._got_signal:
            return "the supervisor was stopped by a signal"
        hours = (now_ms() - self._status.started_at_ms) / 3.6e6
        if self._max_hours is not None and hours > self._max_hours:
            return f"the budget of {self._max_hours:g} h is used up"
        return self._over_budget()

    def _advance(self, spec: ProcessSpec, earlier: Sequence[ProcessSpec]) -> None:
        """Starts, checks or restarts one process. `earlier`: those that have to be ready before it starts."""
        status, state = self._status_of(spec), self._states[spec.name]
        if state.idle:
            self._restart_if_needed(spec, state)
        elif status.process_id is None:
            is_due = time.monotonic() >= state.not_before_s and self._full_disk is None
            if is_due and all(map(self._is_up, earlier)):
                self._start(spec)
        elif (exited := self._handle(spec, status.process_id).poll()) is not None:
            self._after_exit(spec, exited)
        elif not status.ready:
            self._check_ready(spec, state)

    def _is_up(self, spec: ProcessSpec) -> bool:
        """Whether it is ready, or its work is done."""
        return self._status_of(spec).ready or self._states[spec.name].idle

    def _check_ready(self, spec: ProcessSpec, state: _ProcessState) -> None:
        if spec.is_ready():
            self._set_process(spec, ready=True)
            self._add_event(f"{spec.name} is ready")
        elif state.started_s and time.monotonic() - state.started_s > spec.start_patience_s:
            problem = f"{spec.name} was not ready after {spec.start_patience_s:g} s"
            self._shut_down(RunState.FAILED, f"{problem}: {_last_error(spec)}")
        elif not state.started_s:
            state.started_s = time.monotonic()

    def _start(self, spec: ProcessSpec) -> None:
        state = self._states[spec.name]
        state.log_bytes = spec.log.stat().st_size if spec.log.exists() else 0
        try:
            ProcessHandle.launch(spec, self._cwd, lambda handle: self._record_start(spec, handle))
        except OSError as error:
            if (full := DiskRoom.if_full(self._run.folder, str(error))) is not None:
                self._wait_for_room(spec, full)
                return
            self._shut_down(RunState.FAILED, f"{spec.name} cannot be started: {error}")

    def _record_start(self, spec: ProcessSpec, handle: ProcessHandle) -> None:
        state = self._states[spec.name]
        state.handle, state.started_s, state.affected_by_restart = handle, time.monotonic(), False
        self._set_status(spec, ProcessStatus(handle.id, starts=self._status_of(spec).starts + 1))
        self._add_event(f"{spec.name} started, pid {handle.id.pid}")
        self._write()

    def _handle(self, spec: ProcessSpec, process_id: ProcessId) -> ProcessHandle:
        """The handle of a process that was started; one of an earlier supervisor is adopted."""
        state = self._states[spec.name]
        if state.handle is None:
            state.handle = ProcessHandle(process_id)
        return state.handle

    def _after_exit(self, spec: ProcessSpec, exited: Exited) -> None:
        state = self._states[spec.name]
        assert state.handle is not None, "only a process that was started can exit"
        state.handle.kill_group()  # processes that it may have left behind
        was_ready = self._status_of(spec).ready
        self._set_process(spec, exit_code=exited.code, ready=False)
        action = exit_action(spec, exited.code, self._has_error(spec), state.affected_by_restart)
        if action is ExitAction.COMPLETE:
            self._shut_down(RunState.COMPLETED, None)
        elif action is ExitAction.IDLE:
            self._add_event(f"{spec.name} has done its work")
            state.idle = True
            state.not_before_s = time.monotonic() + self._idle_check_s
        elif (full := self._disk_filled_by(spec)) is not None:
            self._wait_for_room(spec, full)
        # Another server on its port may have answered the readiness probes, of it and of later processes.
        elif (not was_ready or exited.code == 1) and self._reassign_port(spec.name):
            self._add_event(f"the port of {spec.name} was in use; it gets another")
            self._restart_from(spec)
        else:
            self._restart_or_fail(spec, action)

    def _disk_filled_by(self, spec: ProcessSpec) -> DiskRoom | None:
        """The disk, if the process that exited found it full."""
        written = (
            max(0, spec.log.stat().st_size - self._states[spec.name].log_bytes) if spec.log.exists() else 0
        )
        return DiskRoom.if_full(self._run.folder, read_tail(spec.log, min(written, TAIL_BYTES)))

    def _wait_for_room(self, spec: ProcessSpec, full: DiskRoom) -> None:
        """The process is started again when the disk has room; its exit is not counted."""
        if self._full_disk is None:
            self._full_disk = full
            self._set(waiting=full.sentence())
            self._add_event(full.sentence())
        self._schedule(spec)
        self._mark_others(spec)

    def _restart_from(self, spec: ProcessSpec) -> None:
        """Restarts the process and all later ones, with a new plan."""
        position, self._specs = self._specs.index(spec), tuple(self._plan())
        for later in self._specs[position:]:
            self._stop(later)
            self._schedule(later)

    def _restart_or_fail(self, spec: ProcessSpec, action: ExitAction) -> None:
        state, description = self._states[spec.name], self._status_of(spec).describe()
        state.exits += 1
        if action is ExitAction.FAIL or state.exits >= _MAX_EXITS:
            count = "" if action is ExitAction.FAIL else f" {state.exits} times without progress"
            self._shut_down(RunState.FAILED, f"{spec.name} {description}{count}: {_last_error(spec)}")
            return
        self._add_event(f"{spec.name} {description}; it is started again", CRASH_EVENT)
        self._schedule(spec, min(_MAX_BACKOFF_S, 0.25 * 4 ** (state.exits - 1)))
        self._mark_others(spec)

    def _schedule(self, spec: ProcessSpec, delay_s: float = 0.0) -> None:
        """The process is started again after the delay, once the earlier ones are ready."""
        state = self._states[spec.name]
        state.handle, state.idle, state.not_before_s = None, False, time.monotonic() + delay_s
        self._set_process(spec, process_id=None, ready=False)

    def _mark_others(self, restarted: ProcessSpec) -> None:
        """Restarts those that depend on it; the others may fail because of it, which is not held against
        them."""
        for spec in self._specs:
            if spec is restarted:
                continue
            self._states[spec.name].affected_by_restart = True
            if restarted.name in spec.restart_with and self._status_of(spec).process_id is not None:
                self._stop(spec)
                self._schedule(spec)

    def _restart_if_needed(self, spec: ProcessSpec, state: _ProcessState) -> None:
        """A process whose work seemed done is needed again if the trainer waits for a batch.

        A trainer that computes does not wait, however long its step takes.
        """
        if time.monotonic() < state.not_before_s:
            return
        state.not_before_s = time.monotonic() + self._idle_check_s
        if not self._is_starving():
            return
        state.exits += 1
        if state.exits >= _MAX_EXITS:
            reason = f"{spec.name} ended before the training did: {_last_error(spec)}"
            self._shut_down(RunState.FAILED, reason)
            return
        self._add_event(f"{spec.name} ended and the trainer waits for a batch; {spec.name} is started again")
        self._schedule(spec)

    def _shut_down(self, state: RunState, reason: str | None) -> None:
        """Stops every process, the last started first, and records the final state."""
        self._set(state=RunState.STOPPING, ending=state, reason=reason)
        self._write()
        for spec in reversed(self._specs):
            self._stop(spec)
        self._set(state=state, ended_at_ms=now_ms(), waiting=None)
        self._add_event(
            reason or "the training is complete", CRASH_EVENT if state is RunState.FAILED else None
        )
        self._write()

    def _stop(self, spec: ProcessSpec) -> None:
        status = self._status_of(spec)
        if status.process_id is None:
            return
        exited = self._handle(spec, status.process_id).stop(
            _KILL_S,
            _REMIND_S,
            lambda elapsed_s: elapsed_s < spec.finish_patience_s and self._can_finish(spec),
        )
        code = status.exit_code if exited.code is None else exited.code
        self._set_process(spec, ready=False, exit_code=code)
        self._write()

    def _can_finish(self, spec: ProcessSpec) -> bool:
        """Whether the processes that it needs are alive, and the run was not stopped with `now`."""
        earlier = [self._status_of(needed).process_id for needed in self._specs[: self._specs.index(spec)]]
        return not self._run.stop_now() and all(
            process_id is not None and process_id.alive() for process_id in earlier
        )

    def _has_error(self, spec: ProcessSpec) -> bool:
        return any(line.startswith("error:") for line in self._run.last_lines(spec.name, 4))

    def _status_of(self, spec: ProcessSpec) -> ProcessStatus:
        return self._status.processes[spec.name]

    def _set(self, **changes: object) -> None:
        self._status = replace(self._status, **changes)  # type: ignore[arg-type]

    def _set_process(self, spec: ProcessSpec, **changes: object) -> None:
        self._set_status(spec, replace(self._status_of(spec), **changes))  # type: ignore[arg-type]

    def _set_status(self, spec: ProcessSpec, status: ProcessStatus) -> None:
        self._set(processes={**self._status.processes, spec.name: status})

    def _add_event(self, text: str, kind: str | None = None) -> None:
        _logger.info("%s", text)
        self._status = self._status.with_event(text, kind)

    def _write(self) -> None:
        """A status that cannot be written now (a full disk) is written as soon as it can be."""
        if self._status == self._written:
            return
        try:
            self._run.write_status(self._status)
            self._written, self._write_failed = self._status, False
        except HermesError as error:
            if not self._write_failed:
                _logger.warning("%s; it is tried again until it can be written", error.message)
            self._write_failed = True

    def _on_signal(self, number: int, frame: object) -> None:
        self._got_signal = True


def _last_error(spec: ProcessSpec) -> str:
    return last_error(spec.log, "its log is empty")
