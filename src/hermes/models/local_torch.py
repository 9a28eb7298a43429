"""Importing torch so that its CPU threads wait for the next operation only briefly before they sleep.

A decode step has about a thousand operations, and each hands work to a team of OpenMP threads. Between them
the workers spin, by default for milliseconds: on two cores and beside one busy process a step of the engine's
then takes three times as long, beside two thirty times, because a worker spins on the core that the other
needs. Some ten microseconds are enough to be awake for the next operation, so that a quiet machine is as fast
as before, and beside busy processes a step takes less than twice as long. docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import os

SPINS = "GOMP_SPINCOUNT"
_FEW = "1000"
_CHOSEN_BY_USER = (SPINS, "OMP_WAIT_POLICY")


def import_torch() -> None:
    """To be called before the first `import torch`; the user's own setting of the variables is respected.

    OpenMP reads the variable when it is loaded, so it is taken back at once: child processes do not get it.
    """
    if any(name in os.environ for name in _CHOSEN_BY_USER):
        return
    os.environ[SPINS] = _FEW
    try:
        import torch  # noqa: F401
    finally:
        del os.environ[SPINS]
