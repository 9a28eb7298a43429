"""Owning a run: starting its parts by readiness, restarting what can be, stopping in reverse order.

A supervisor that takes over from a dead one adopts the parts that still run, by pid and start time. A part
that ended while nobody looked is started again: every part carries on from its own durable state, and one
that was done ends at once.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from hermes.errors import HermesError
from hermes.rl.run import PartStatus, RlRun, RunState, RunStatus, now_ms
from hermes.rl.supervise.part import End, Part, judge, launch
from hermes.rl.supervise.processes import ProcessId, signal_group

_TICK_S = 0.1
_MOST_ENDS = 5
"""Ends of one part, without a trained step in between, after which the run fails."""
_LONGEST_PAUSE_S = 20.0
_REST_S = 20.0
"""How often is checked whether a part that has done its work is needed again."""
_AGAIN_S, _KILL_S = 5.0, 15.0
"""After a first polite signal, or after a part's own time to finish: when a second follows, and when the
process is killed."""

_logger = logging.getLogger(__name__)


@dataclass
class _ProcessState:
    """What the supervisor remembers of a part, and may forget when it dies itself."""

    child: subprocess.Popen[bytes] | None = None
    ends: int = 0
    not_before_s: float = 0.0
    started_s: float = 0.0
    resting: bool = False
    disturbed: bool = False


class RunSupervisor:
    def __init__(
        self,
        run: RlRun,
        plan: Callable[[], Sequence[Part]],
        *,
        move: Callable[[str], bool] = lambda part: False,
        cwd: Path,
        max_hours: float | None = None,
        over_budget: Callable[[], str | None] = lambda: None,
        progress: Callable[[], int] = lambda: 0,
        starving: Callable[[], bool] = lambda: False,
        rest_s: float = _REST_S,
    ) -> None:
        """`plan` gives the parts in starting order; `move` gives a part another port if its own was taken;
        `progress` counts the steps trained; `starving`: whether the trainer waits for a batch that has not
        come for long; `over_budget` says why the run has to stop, once it has."""
        self._run, self._plan, self._move, self._progress = run, plan, move, progress
        self._starving, self._rest_s = starving, rest_s
        self._cwd, self._max_hours, self._over_budget = cwd, max_hours, over_budget
        self._parts = tuple(plan())
        self._care = {part.name: _ProcessState() for part in self._parts}
        self._status = run.status()
        self._written: RunStatus | None = None
        self._last_progress = progress()
        self._asked_to_stop = False

    def supervise(self) -> RunState:
        """Until the run has ended; its final state."""
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        known = self._status.parts
        self._set(
            supervisor=ProcessId.of(os.getpid()),
            parts={part.name: known.get(part.name, PartStatus()) for part in self._parts},
        )
        if self._status.state is RunState.PENDING:
            self._set(state=RunState.STARTING)
        else:
            self._note("a new supervisor has taken over")
        if self._status.ending is not None:
            self._shut_down(self._status.ending, self._status.reason)
        while not self._status.state.ended or self._status != self._written:
            if not self._status.state.ended:
                self._tick()
            self._write()
            time.sleep(_TICK_S)
        return self._status.state

    def _tick(self) -> None:
        if (why := self._why_stop()) is not None:
            self._shut_down(RunState.STOPPED, why)
            return
        if (now := self._progress()) > self._last_progress:
            self._last_progress = now
            for care in self._care.values():
                care.ends = 0
        for index, part in enumerate(self._parts):
            self._attend(part, self._parts[:index])
            if self._status.state.ended:
                return
        if self._status.state is RunState.STARTING and all(
            self._of(part).ready or self._care[part.name].resting for part in self._parts
        ):
            self._set(state=RunState.RUNNING)
            self._note("every part is ready")

    def _why_stop(self) -> str | None:
        if self._run.stop_path.exists():
            return "stopped on request"
        if self._asked_to_stop:
            return "the supervisor was told to end"
        hours = (now_ms() - self._status.started_at_ms) / 3.6e6
        if self._max_hours is not None and hours > self._max_hours:
            return f"the budget of {self._max_hours:g} h is used up"
        return self._over_budget()

    def _attend(self, part: Part, before: Sequence[Part]) -> None:
        status, care = self._of(part), self._care[part.name]
        if care.resting:
            self._wake_if_needed(part, care)
        elif status.process is not None and (code := self._ended(part)) is not False:
            self._after_end(part, code)
        elif status.process is None:
            rested = time.monotonic() >= care.not_before_s
            if rested and all(self._of(one).ready or self._care[one.name].resting for one in before):
                self._start(part)
        elif not status.ready:
            self._look_whether_ready(part, care)

    def _look_whether_ready(self, part: Part, care: _ProcessState) -> None:
        if part.ready():
            self._set_part(part, ready=True)
            self._note(f"{part.name} is ready")
        elif care.started_s and time.monotonic() - care.started_s > part.start_patience_s:
            what = f"{part.name} was not ready after {part.start_patience_s:g} s"
            self._shut_down(RunState.FAILED, f"{what}: {self._last_word(part)}")
        elif not care.started_s:
            care.started_s = time.monotonic()

    def _start(self, part: Part) -> None:
        care, starts = self._care[part.name], self._of(part).starts
        try:
            care.child = launch(part, self._cwd)
        except OSError as error:
            self._shut_down(RunState.FAILED, f"{part.name} cannot be started: {error}")
            return
        care.started_s, care.disturbed = time.monotonic(), False
        self._set_part(part, PartStatus(ProcessId.of(care.child.pid), starts=starts + 1))
        self._note(f"{part.name} started, pid {care.child.pid}")
        self._write()

    def _ended(self, part: Part) -> int | bool | None:
        """False while it runs; otherwise its exit code, None if it was another supervisor's child."""
        care, process = self._care[part.name], self._of(part).process
        assert process is not None, "only a part that was started can end"
        if care.child is not None:
            code = care.child.poll()
            return False if code is None else code
        return False if process.alive() else None

    def _after_end(self, part: Part, code: int | None) -> None:
        care, process = self._care[part.name], self._of(part).process
        assert process is not None
        signal_group(process, signal.SIGKILL)  # what it may have left behind
        was_ready = self._of(part).ready
        self._set_part(part, exit_code=code, ready=False)
        said = self._of(part).describe()
        end = judge(part, code, self._explains(part), care.disturbed)
        if end is End.COMPLETE:
            self._shut_down(RunState.COMPLETED, None)
            return
        if end is End.REST:
            self._note(f"{part.name} has done its work")
            care.resting = True
            care.not_before_s = time.monotonic() + self._rest_s
            return
        # Whoever has its port may have answered in its name: it, and those after it, may count as ready.
        if (not was_ready or code == 1) and self._move(part.name):
            self._note(f"the port of {part.name} was taken; it gets another")
            at, self._parts = self._parts.index(part), tuple(self._plan())
            for later in self._parts[at:]:
                self._end(later)
                self._again(later)
            return
        care.ends += 1
        if end is End.FATAL or care.ends >= _MOST_ENDS:
            again = f" {care.ends} times without progress" if end is not End.FATAL else ""
            self._shut_down(RunState.FAILED, f"{part.name} {said}{again}: {self._last_word(part)}")
            return
        self._note(f"{part.name} {said}; it is started again")
        self._again(part, min(_LONGEST_PAUSE_S, 0.25 * 4 ** (care.ends - 1)))
        self._disturb(part)

    def _again(self, part: Part, pause_s: float = 0.0) -> None:
        care = self._care[part.name]
        care.child, care.resting, care.not_before_s = None, False, time.monotonic() + pause_s
        self._set_part(part, process=None, ready=False)

    def _disturb(self, dead: Part) -> None:
        """Those that cannot outlive it are ended as well; the others may stumble without blame."""
        for other in self._parts:
            if other is dead:
                continue
            self._care[other.name].disturbed = True
            if dead.name in other.ends_with and self._of(other).process is not None:
                self._end(other)
                self._again(other)

    def _wake_if_needed(self, part: Part, care: _ProcessState) -> None:
        """A part that ended as if its work were done is needed again if the trainer waits for a batch.

        A trainer that computes does not wait, however long its step takes.
        """
        if time.monotonic() < care.not_before_s:
            return
        care.not_before_s = time.monotonic() + self._rest_s
        if not self._starving():
            return
        care.ends += 1
        if care.ends >= _MOST_ENDS:
            why = f"{part.name} ended before the training did: {self._last_word(part)}"
            self._shut_down(RunState.FAILED, why)
            return
        self._note(f"{part.name} ended and the trainer waits for a batch; {part.name} is started again")
        self._again(part)

    def _shut_down(self, state: RunState, reason: str | None) -> None:
        """Ends every part, the last started first, and records the outcome."""
        self._set(state=RunState.STOPPING, ending=state, reason=reason)
        self._write()
        for part in reversed(self._parts):
            self._end(part)
        self._set(state=state, ended_at_ms=now_ms())
        self._note(reason or "the training is complete")
        self._write()

    def _end(self, part: Part) -> None:
        process = self._of(part).process
        if process is None:
            return
        begun = patient = time.monotonic()
        asked = 0
        while self._ended(part) is False:
            now = time.monotonic()
            if now - begun < part.finish_patience_s and self._can_finish(part):
                patient = now
            if now - patient > _KILL_S:
                signal_group(process, signal.SIGKILL)
            elif asked == 0 or (asked == 1 and now - patient > _AGAIN_S):
                asked += 1
                signal_group(process, signal.SIGTERM)
            time.sleep(_TICK_S / 2)
        signal_group(process, signal.SIGKILL)
        code = self._ended(part)
        before = self._of(part).exit_code
        self._set_part(part, ready=False, exit_code=before if code is None else code)
        self._write()

    def _can_finish(self, part: Part) -> bool:
        """Whether all that it needs for that is there, and nobody is in a hurry."""
        before = [self._of(one).process for one in self._parts[: self._parts.index(part)]]
        return not self._run.in_a_hurry() and all(one is not None and one.alive() for one in before)

    def _explains(self, part: Part) -> bool:
        return any(line.startswith("error:") for line in self._run.last_lines(part.name, 4))

    def _last_word(self, part: Part) -> str:
        lines = self._run.last_lines(part.name, 30)
        errors = [line for line in lines if line.startswith("error:")]
        return (errors or lines or ["its log is empty"])[-1].removeprefix("error: ")

    def _of(self, part: Part) -> PartStatus:
        return self._status.parts[part.name]

    def _set(self, **changes: object) -> None:
        self._status = replace(self._status, **changes)  # type: ignore[arg-type]

    def _set_part(self, part: Part, whole: PartStatus | None = None, **changes: object) -> None:
        now = whole or replace(self._of(part), **changes)  # type: ignore[arg-type]
        self._set(parts={**self._status.parts, part.name: now})

    def _note(self, text: str) -> None:
        _logger.info("%s", text)
        self._status = self._status.noted(text)

    def _write(self) -> None:
        """A record that cannot be written now (a full disk) is written when it can."""
        if self._status == self._written:
            return
        try:
            self._run.write_status(self._status)
            self._written = self._status
        except HermesError as error:
            _logger.warning("%s", error.message)

    def _on_signal(self, number: int, frame: object) -> None:
        self._asked_to_stop = True
