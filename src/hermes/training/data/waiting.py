"""The wait of a trainer for a batch: what it logs, and when it gives up.

While an environment is connected the wait has no limit: rollouts may take long, and an environment that fails
ends with its own error. Without one there are no new rollouts, and the trainer gives up after its patience.
With an API that does not report how many environments are connected (the original Atropos server) the wait
has no limit either.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from hermes.errors import HermesError
from hermes.training.data.api import NoBatch

ENV_PATIENCE_S = 1800.0
_LOG_EVERY_S = 30.0
_START_ONE = "start one: hermes env serve NAME"


class NoEnvironmentError(HermesError):
    """No environment was connected for the whole patience, and no batch was queued."""


class BatchWait:
    """One wait, from the first poll without a batch."""

    def __init__(self, env_patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._env_patience_s = env_patience_s
        self._clock = clock
        self._logged_s = clock()
        self._no_env_since_s: float | None = None
        """Since when no environment is connected; None: one is, or the API does not report it."""

    def line_if_due(self, response: NoBatch) -> str | None:
        """The line to log, every 30 seconds, else None. NoEnvironmentError once the patience is over."""
        now_s = self._clock()
        if response.envs_connected != 0:
            self._no_env_since_s = None
        elif self._no_env_since_s is None:
            self._no_env_since_s = now_s
        left_s = None if self._no_env_since_s is None else self._no_env_since_s + self._env_patience_s - now_s
        if left_s is not None and left_s <= 0:
            raise NoEnvironmentError(
                f"no environment was connected to the trajectory API for {self._env_patience_s:g} s, "
                f"and no batch could be made: {response.reason}",
                f"{_START_ONE}; then run this command again, and it continues from its last checkpoint. "
                "If an environment has ended, its log has the reason.",
            )
        if now_s - self._logged_s < _LOG_EVERY_S:
            return None
        self._logged_s = now_s
        line = f"waiting for a batch: {response.reason}"
        if left_s is not None:
            line += f"; no environment is connected ({_START_ONE}), and this run ends in {left_s:.0f} s"
        return line
