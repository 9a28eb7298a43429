"""Several processes of one environment, watched until all have done their work.

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

from hermes.config.environment import ENV_REPLICA_VARIABLE
from hermes.errors import HermesError
from hermes.rl.supervise.process import (
    HERMES,
    Exited,
    ProcessHandle,
    ProcessSpec,
    last_error,
    signal_group,
)

_TICK_S = 0.1
_CONFIG_ERROR = 2
_MAX_FAILURES = 5
"""Of one process in a row, each before it has served for `_SETTLED_S`."""
_SETTLED_S = 120.0
_MAX_BACKOFF_S = 20.0
_END_S = 600.0
"""For all processes to end after a signal: longer than an environment's stop_patience_s is in practice."""


@dataclass(slots=True, eq=False)
class _Watched:
    spec: ProcessSpec
    handle: ProcessHandle | None = None
    started_s: float = 0.0
    not_before_s: float = 0.0
    failures: int = 0
    done: bool = False


class EnvReplicaGroup:
    def __init__(
        self, arguments: tuple[str, ...], count: int, logs: Path, announce: Callable[[str], None]
    ) -> None:
        """`arguments`: of `hermes`, the same for all. `announce` is called with every event."""
        self._announce = announce
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
        if replica.handle is None:
            if time.monotonic() >= replica.not_before_s:
                self._start(replica)
        elif (exited := replica.handle.poll()) is not None:
            replica.handle.kill_group()  # processes that it may have left behind
            replica.handle = None
            self._after_exit(replica, exited)

    def _start(self, replica: _Watched) -> None:
        replica.handle = ProcessHandle.launch(replica.spec, Path.cwd())
        replica.started_s = time.monotonic()
        self._announce(f"{replica.spec.name} started, pid {replica.handle.id.pid}")

    def _after_exit(self, replica: _Watched, exited: Exited) -> None:
        name, code = replica.spec.name, exited.code or 0
        if code == 0:
            replica.done = True
            self._announce(f"{name} has done its work")
            return
        settled = time.monotonic() - replica.started_s > _SETTLED_S
        replica.failures = 1 if settled else replica.failures + 1
        problem = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        if code == _CONFIG_ERROR or replica.failures >= _MAX_FAILURES:
            reason = last_error(replica.spec.log, "its log is empty")
            raise HermesError(f"{name} {problem}: {reason}", f"see {replica.spec.log}")
        self._announce(f"{name} {problem}; it is started again")
        replica.not_before_s = time.monotonic() + min(_MAX_BACKOFF_S, 0.25 * 4 ** (replica.failures - 1))

    def _end(self) -> None:
        """Signals all processes that run, then waits for each."""
        running = [replica.handle for replica in self._replicas if replica.handle is not None]
        for handle in running:
            signal_group(handle.id, signal.SIGTERM)
        deadline_s, passed_on = time.monotonic() + _END_S, 1
        while any(handle.poll() is None for handle in running) and time.monotonic() < deadline_s:
            if self._signals > passed_on:
                passed_on = self._signals
                for handle in running:
                    signal_group(handle.id, signal.SIGTERM)
            time.sleep(_TICK_S)
        for handle in running:
            handle.kill_group()

    def _on_signal(self, number: int, frame: object) -> None:
        self._signals += 1
