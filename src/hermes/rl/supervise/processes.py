"""Which process is meant, whether it still runs, and how its whole group is ended.

A process is its pid and its start time, so that a recycled pid is another one. One that has ended and was
not yet collected by its parent counts as ended.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path

from hermes.core import JSON


@dataclass(frozen=True, slots=True)
class ProcessId:
    pid: int
    started: str
    """Clock ticks since boot, or what `ps` says where there is no /proc."""

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
        now = _start_time(self.pid)
        return now is not None and self.started in ("?", now)


def signal_group(process: ProcessId, number: signal.Signals) -> None:
    """Sends a signal to the process's group, which it leads. Nobody there is no error."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, number)


def _start_time(pid: int) -> str | None:
    """None if no such process runs."""
    if Path("/proc/self/stat").exists():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            return None
        return None if fields[0] in "ZX" else fields[19]
    said = subprocess.run(["ps", "-o", "stat=,lstart=", "-p", str(pid)], capture_output=True, text=True)
    state, _, started = said.stdout.strip().partition(" ")
    return None if not state or state.startswith("Z") else started.strip()
