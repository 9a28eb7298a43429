"""Imports torch so that its OpenMP threads spin only briefly between operations before they sleep.

A decode step has about a thousand operations, each run by a team of OpenMP threads. Between operations the
threads spin, by default for milliseconds. On two cores, one other busy process then makes a step of the
engine three times slower, and two make it thirty times slower, because a thread spins on the core that the
other needs. About ten microseconds are enough to be awake for the next operation: an idle machine is as fast
as before, and beside busy processes a step takes less than twice as long. Larger teams wait longer for each
other and leave more cores to others, so they may spin longer. docs/benchmarks.md has the figures.
"""

from __future__ import annotations

import os

from hermes.core.processors import usable_processors

SPINS = "GOMP_SPINCOUNT"
_FEW, _MORE = "1000", "5000"
"""With up to two cores, and with more."""
_CHOSEN_BY_USER = (SPINS, "OMP_WAIT_POLICY")


def import_torch() -> None:
    """Call this before the first `import torch`. Variables that the user has set are respected.

    OpenMP reads the variable when it is loaded, so it is removed at once: child processes do not inherit it.
    """
    if any(name in os.environ for name in _CHOSEN_BY_USER):
        return
    os.environ[SPINS] = _FEW if usable_processors() <= 2 else _MORE
    try:
        import torch  # noqa: F401
    finally:
        del os.environ[SPINS]
