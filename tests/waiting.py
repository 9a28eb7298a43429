"""Waiting for what another thread, task or process does.

No wait has a limit of its own: a test that waits in vain runs into its timeout, whose traceback shows where.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.02


def wait_until(condition: Callable[[], T | None]) -> T:
    """The first true value of the condition."""
    while not (value := condition()):
        time.sleep(_POLL_S)
    return value


async def await_until(condition: Callable[[], T | None]) -> T:
    """The same in a coroutine."""
    while not (value := condition()):  # noqa: ASYNC110  the condition is another thread's or process's
        await asyncio.sleep(_POLL_S / 4)
    return value


def wait_until_ended(pids: Iterable[int]) -> None:
    """Returns when none of the processes runs; one that is dead and not yet collected does not run."""
    wait_until(lambda: not any(map(_runs, pids)))


def _runs(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"
