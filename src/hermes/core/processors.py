"""How many processors this process may use: in a container often fewer than the machine has."""

from __future__ import annotations

import math
import os
import sys
from pathlib import Path

_CONTROL_GROUPS = Path("/sys/fs/cgroup")


def usable_processors(control_groups: Path = _CONTROL_GROUPS) -> int:
    """At least 1: those that its affinity allows (taskset, cpuset), and no more than the quota of its control
    group (docker run --cpus), rounded up."""
    allowed = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    quota = _quota(control_groups)
    return allowed if quota is None else max(1, min(allowed, math.ceil(quota)))


def _quota(control_groups: Path) -> float | None:
    """Processors; None: there is no limit."""
    version_2 = _numbers(control_groups / "cpu.max")
    version_1 = [
        *_numbers(control_groups / "cpu" / "cpu.cfs_quota_us"),
        *_numbers(control_groups / "cpu" / "cpu.cfs_period_us"),
    ]
    for numbers in (version_2, version_1):
        if len(numbers) == 2 and min(numbers) > 0:
            return numbers[0] / numbers[1]
    return None


def _numbers(path: Path) -> list[int]:
    """Empty without the file, or if it says `max`."""
    try:
        return [int(word) for word in path.read_text("ascii").split()]
    except (OSError, ValueError):
        return []
