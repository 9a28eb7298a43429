"""Importing torch so that its CPU threads wait for the next operation only briefly before they sleep.

A decode step has about a thousand operations, and each hands work to a team of OpenMP threads. Between them
the workers spin, by default for milliseconds: on two cores and beside one busy process a step of the engine's
then takes three times as long, beside two thirty times, because a worker spins on the core that the other
needs. Some ten microseconds are enough to be awake for the next operation, so that a quiet machine is as fast
as before, and beside busy processes a step takes less than twice as long. Larger teams wait longer for each
other and leave more cores to others, so there it may be longer. docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import os
import sys

SPINS = "GOMP_SPINCOUNT"
_FEW, _MORE = "1000", "5000"
"""With up to two cores, and with more."""
_CHOSEN_BY_USER = (SPINS, "OMP_WAIT_POLICY")


def import_torch() -> None:
    """To be called before the first `import torch`; the user's own setting of the variables is respected.

    OpenMP reads the variable when it is loaded, so it is taken back at once: child processes do not get it.
    """
    if any(name in os.environ for name in _CHOSEN_BY_USER):
        return
    os.environ[SPINS] = _FEW if _cores() <= 2 else _MORE
    try:
        import torch  # noqa: F401
    finally:
        del os.environ[SPINS]


def _cores() -> int:
    """That this process may use: a container often has fewer than the machine."""
    return len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
