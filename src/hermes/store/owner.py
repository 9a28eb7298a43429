"""Which process records a trajectory, and whether it is still running.

An owner is written as `<pid>:<start time>`; the start time makes a recycled pid a different owner.
"""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path


@cache
def _this_process(pid: int) -> str:
    return f"{pid}:{_start_time(pid) or '?'}"


def this_process() -> str:
    return _this_process(os.getpid())  # keyed by pid, so a forked child is its own owner


def is_alive(owner: str) -> bool:
    """False only if that process has certainly ended."""
    pid_text, _, started = owner.partition(":")
    pid = int(pid_text)
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    now = _start_time(pid)
    return now is None or started in ("?", now)


def _start_time(pid: int) -> str | None:
    """Field 22 of /proc/<pid>/stat, in clock ticks since boot; None where there is no /proc."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None
    return stat.rpartition(")")[2].split()[19]
