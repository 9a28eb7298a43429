"""How long the remaining steps of a run take, from the last ones that this process made."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable

from hermes.core.clock import duration

_WINDOW_STEPS = 20


class StepPace:
    """Begins with the first step; `left` is called once after each."""

    def __init__(self, last_step: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._last_step, self._clock = last_step, clock
        self._ended_s = deque([clock()], maxlen=_WINDOW_STEPS + 1)

    def left(self, step: int) -> str:
        """For the end of a progress line; empty after the last step."""
        self._ended_s.append(self._clock())
        steps = len(self._ended_s) - 1
        step_s = (self._ended_s[-1] - self._ended_s[0]) / steps
        remaining = self._last_step - step
        return f"  {duration(remaining * step_s)} left" if remaining > 0 else ""
