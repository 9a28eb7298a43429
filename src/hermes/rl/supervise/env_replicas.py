"""Several processes of one environment, here or on a Ray cluster, watched until all have done their work.

A process that is killed or fails is started again, and named. One that cannot work as configured, or that
fails again and again without serving for a while, ends the others: its last error is the group's. SIGTERM or
Ctrl-C is passed on: every process ends in order, as one alone would, and a second signal ends them at once.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hermes.config.environment import ENV_REPLICA_VARIABLE
from hermes.errors import HermesError
from hermes.rl.process import (
    HERMES,
    ProcessHandle,
    ProcessSpec,
    last_error,
    signal_group,
)

_TICK_S = 0.1
_CONFIG_ERROR = 2
_MAX_FAILURES = 5
"""How often in a row one process may fail before it has served for `_SETTLED_S`."""
_SETTLED_S = 120.0
_MAX_BACKOFF_S = 20.0
_END_S = 600.0
"""For all processes to end after a signal: longer than an environment's stop_patience_s is in practice."""


@dataclass(frozen=True, slots=True)
class ReplicaEnd:
    """How an environment process has ended."""

    code: int | None
    """None: it was lost with its node."""
    text: str
    """The end of a sentence about it."""
    problem: HermesError | None = None
    """Why no process like it can work; None: another one may."""

    @classmethod
    def from_code(cls, code: int) -> ReplicaEnd:
        return cls(code, f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}")


class EnvReplicaProcess(Protocol):
    @property
    def location(self) -> str | None:
        """Where it runs, for people; None until that is known."""
        ...

    def poll(self) -> ReplicaEnd | None:
        """None while it runs."""
        ...

    def terminate(self) -> None:
        """Ends it in order; called a second time, at once. One that has ended is no error."""
        ...

    def kill(self) -> None:
        """Kills it and whatever it started."""
        ...


class LocalEnvProcess:
    def __init__(self, spec: ProcessSpec) -> None:
        self._handle = ProcessHandle.launch(spec, Path.cwd())

    @property
    def location(self) -> str:
        return f"pid {self._handle.id.pid}"

    def poll(self) -> ReplicaEnd | None:
        exited = self._handle.poll()
        if exited is None:
            return None
        if exited.code is None:
            return ReplicaEnd(None, "ended with an unknown exit code")
        return ReplicaEnd.from_code(exited.code)

    def terminate(self) -> None:
        signal_group(self._handle.id, signal.SIGTERM)

    def kill(self) -> None:
        self._handle.kill_group()


@dataclass(slots=True, eq=False)
class _Watched:
    spec: ProcessSpec
    process: EnvReplicaProcess | None = None
    announced: bool = False
    """Whether it was announced where it runs."""
    started_s: float = 0.0
    not_before_s: float = 0.0
    failures: int = 0
    done: bool = False


class EnvReplicaGroup:
    def __init__(
        self,
        arguments: tuple[str, ...],
        count: int,
        logs: Path,
        announce: Callable[[str], None],
        launch: Callable[[ProcessSpec], EnvReplicaProcess] = LocalEnvProcess,
    ) -> None:
        """`arguments`: of `hermes`, the same for all. `announce` is called with every event."""
        self._announce, self._launch = announce, launch
        self._signals = 0
        self._replicas = [
            _Watched(
                ProcessSpec(
                    f"env-{number}",
                    (*HERMES, *arguments),
                    logs / f"env-{number}.log",
                    environ={ENV_REPLICA_VARIABLE: f"{number}/{count}"},
                )
            )
            for number in range(1, count + 1)
        ]

    def run(self) -> None:
        """Returns when every process has exited with 0, or after a signal. HermesError: one cannot work."""
        before = {
            number: signal.signal(number, self._on_signal) for number in (signal.SIGTERM, signal.SIGINT)
        }
        try:
            while not self._signals and not all(replica.done for replica in self._replicas):
                for replica in self._replicas:
                    self._advance(replica)
                time.sleep(_TICK_S)
        finally:
            self._end()
            for number, handler in before.items():
                signal.signal(number, handler)

    def _advance(self, replica: _Watched) -> None:
        if replica.done:
            return
        if replica.process is None:
            if time.monotonic() >= replica.not_before_s:
                replica.process, replica.announced = self._launch(replica.spec), False
                replica.started_s = time.monotonic()
            return
        if not replica.announced and replica.process.location is not None:
            replica.announced = True
            self._announce(f"{replica.spec.name} started, {replica.process.location}")
        if (end := replica.process.poll()) is not None:
            replica.process.kill()  # processes that it may have left behind
            replica.process = None
            self._after_end(replica, end)

    def _after_end(self, replica: _Watched, end: ReplicaEnd) -> None:
        name = replica.spec.name
        if end.problem is not None:
            raise end.problem
        if end.code == 0:
            replica.done = True
            self._announce(f"{name} has done its work")
            return
        settled = time.monotonic() - replica.started_s > _SETTLED_S
        replica.failures = 1 if settled else replica.failures + 1
        if end.code == _CONFIG_ERROR or replica.failures >= _MAX_FAILURES:
            reason = last_error(replica.spec.log, "its log is empty")
            raise HermesError(f"{name} {end.text}: {reason}", f"see {replica.spec.log}")
        self._announce(f"{name} {end.text}; it is started again")
        replica.not_before_s = time.monotonic() + min(_MAX_BACKOFF_S, 0.25 * 4 ** (replica.failures - 1))

    def _end(self) -> None:
        """Signals all processes that run, then waits for each."""
        running = [replica.process for replica in self._replicas if replica.process is not None]
        for process in running:
            process.terminate()
        deadline_s, passed_on = time.monotonic() + _END_S, 1
        while any(process.poll() is None for process in running) and time.monotonic() < deadline_s:
            if self._signals > passed_on:
                passed_on = self._signals
                for process in running:
                    process.terminate()
            time.sleep(_TICK_S)
        for process in running:
            process.kill()

    def _on_signal(self, number: int, frame: object) -> None:
        self._signals += 1
