"""Processes of a run: how one is started, identified, probed and stopped, and the end of its log.

A process is identified by its pid and its start time, so that a recycled pid is not mistaken for it. A
process that has exited and was not yet reaped by its parent counts as exited. Every process leads a process
group of its own, and stopping it kills whatever it started. A process that has to be recorded runs its
command only once it is: whoever takes over from a killed supervisor finds every process that runs.
"""

from __future__ import annotations

import contextlib
import errno
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from hermes.config.environment import without_stored
from hermes.core import JSON

HERMES = (sys.executable, "-P", "-m", "hermes")
"""-P: nothing in the directory it starts in can take the place of a module."""
_GATE = ("/bin/sh", "-c", 'read -r _ && exec "$@" </dev/null', "sh")
"""Runs the command after it in the same process once a line arrives; exits if the writer dies before."""
_POLL_S = 0.05
TAIL_BYTES = 16_384
"""How much of a log or of the metrics is read where only the end matters: several rows."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process of a run: its command, when it is ready, and what its exit means for the run."""

    name: str
    command: tuple[str, ...]
    log: Path
    is_ready: Callable[[], bool] = lambda: True
    """Probes the process, or a server that the process connects to. Quick; False while there is no
    response."""
    environ: Mapping[str, str] = field(default_factory=dict)
    """On top of the environment of this process; the child reads `.env` itself."""
    restart_with: tuple[str, ...] = ()
    """Processes whose exit makes the state of this one useless: it is stopped and started again after
    them."""
    completes_run: bool = False
    """Whether the run is complete when this process has exited with 0."""
    is_done: Callable[[], bool] = lambda: True
    """Whether an exit with 0 means that its work is done; False if it was only stopped."""
    is_server: bool = False
    """Whether it is a server, which never exits by itself."""
    start_patience_s: float = 600.0
    """How long it may take to become ready."""
    finish_patience_s: float = 0.0
    """How long it may take after SIGTERM to finish and save its work. It is signalled only once in that time,
    and has the time only while the processes that were started before it are alive."""


@dataclass(frozen=True, slots=True)
class ProcessId:
    pid: int
    started: str
    """Clock ticks since boot, or the start time of `ps` on systems without /proc."""

    @classmethod
    def of(cls, pid: int) -> ProcessId:
        """The process that has this pid now."""
        return cls(pid, _start_time(pid) or "?")

    @classmethod
    def from_json(cls, data: JSON) -> ProcessId | None:
        if not isinstance(data, dict):
            return None
        return cls(int(data["pid"]), str(data["started"]))

    def to_json(self) -> dict[str, JSON]:
        return {"pid": self.pid, "started": self.started}

    def alive(self) -> bool:
        started = _start_time(self.pid)
        return started is not None and self.started in ("?", started)


@dataclass(frozen=True, slots=True)
class Exited:
    """A process has exited."""

    code: int | None
    """Negative: the signal that killed it. None: unknown, because it was not a child of this process."""


_LAST_GRACE_S = 2.0
_LAUNCHED: list[ProcessId] = []
"""The processes that this one has launched, each in a session that no signal of the terminal reaches."""


def terminate_launched() -> None:
    """Ends everything that this process has launched and that still runs, by SIGTERM and soon by SIGKILL: it
    ends at once itself, and nobody else would stop them."""
    running = [process_id for process_id in _LAUNCHED if process_id.alive()]
    for process_id in running:
        signal_group(process_id, signal.SIGTERM)
    if running:
        time.sleep(_LAST_GRACE_S)
    for process_id in running:
        signal_group(process_id, signal.SIGKILL)


class ProcessHandle:
    """A process that was launched here, or one of an earlier supervisor that is adopted by its id."""

    def __init__(self, process_id: ProcessId, child: subprocess.Popen[bytes] | None = None) -> None:
        self.id = process_id
        self._child = child

    @classmethod
    def launch(
        cls, spec: ProcessSpec, cwd: Path, record: Callable[[ProcessHandle], None] | None = None
    ) -> ProcessHandle:
        """Starts it in a session of its own and appends its output to its log.

        `record` writes down that it runs. If this process is killed before that, the command never runs.
        """
        if shutil.which(spec.command[0]) is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), spec.command[0])
        spec.log.parent.mkdir(parents=True, exist_ok=True)
        with spec.log.open("ab") as log:
            child = subprocess.Popen(
                (*_GATE, *spec.command),
                env={**without_stored(os.environ), **spec.environ},
                cwd=cwd,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        handle = cls(ProcessId.of(child.pid), child)
        _LAUNCHED.append(handle.id)
        if record is not None:
            record(handle)
        assert child.stdin is not None
        with contextlib.suppress(BrokenPipeError), child.stdin as gate:
            gate.write(b"\n")
        return handle

    def poll(self) -> Exited | None:
        """None while it runs."""
        if self._child is None:
            return None if self.id.alive() else Exited(None)
        code = self._child.poll()
        return None if code is None else Exited(code)

    def stop(
        self,
        grace_s: float,
        remind_s: float = math.inf,
        may_finish: Callable[[float], bool] = lambda elapsed_s: False,
    ) -> Exited:
        """Sends SIGTERM to the group, once more after `remind_s`, and SIGKILL after `grace_s`.

        The two times start when `may_finish`, called with the seconds since the first signal, returns False.
        """
        began_s = counted_from_s = time.monotonic()
        terms = 0
        while (exited := self.poll()) is None:
            now_s = time.monotonic()
            if may_finish(now_s - began_s):
                counted_from_s = now_s
            if now_s - counted_from_s > grace_s:
                self.kill_group()
            elif terms == 0 or (terms == 1 and now_s - counted_from_s > remind_s):
                terms += 1
                signal_group(self.id, signal.SIGTERM)
            time.sleep(_POLL_S)
        self.kill_group()
        return exited

    def kill_group(self) -> None:
        """Kills the process and whatever it started; a process that has exited is no error."""
        signal_group(self.id, signal.SIGKILL)


def signal_group(process_id: ProcessId, number: signal.Signals) -> None:
    """Sends a signal to the group that the process leads. A group that does not exist is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process_id.pid, number)


def read_tail(path: Path, max_bytes: int = TAIL_BYTES) -> str:
    """The last bytes of a file as text; empty if the file does not exist."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - max_bytes))
            return file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""


def last_lines(log: Path, count: int) -> list[str]:
    """The last lines of a log that are not blank, without control characters."""
    from hermes.safety.text import printable

    return [printable(line) for line in read_tail(log).splitlines() if line.strip()][-count:]


def last_error(log: Path, default: str) -> str:
    """The last error in a log, else its last line, else `default`."""
    lines = last_lines(log, 30)
    errors = [line for line in lines if line.startswith("error:")]
    return (errors or lines or [default])[-1].removeprefix("error: ")


def _start_time(pid: int) -> str | None:
    """None if no such process runs."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    ps = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True)
    state, _, started = ps.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()
