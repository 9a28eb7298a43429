"""A trainer that waits for a batch: what it logs meanwhile, and when it ends because nothing can come.

While an environment is connected the wait has no limit: rollouts may take long, and an environment that
cannot go on ends with an error of its own. Without one nobody makes rollouts, and the patience counts down.
An API that does not tell how many environments are connected (the original Atropos server) is waited for
without a limit, too.
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
    """One wait, from the first poll that brought no batch."""

    def __init__(self, env_patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._env_patience_s = env_patience_s
        self._clock = clock
        self._logged_s = clock()
        self._deserted_s: float | None = None
        """Since when no environment is connected; None: one is, or the API does not tell."""

    def line_if_due(self, answer: NoBatch) -> str | None:
        """The line to log, at intervals. NoEnvironmentError once the patience is over."""
        now_s = self._clock()
        if answer.envs_connected != 0:
            self._deserted_s = None
        elif self._deserted_s is None:
            self._deserted_s = now_s
        left_s = None if self._deserted_s is None else self._deserted_s + self._env_patience_s - now_s
        if left_s is not None and left_s <= 0:
            raise NoEnvironmentError(
                f"no environment was connected to the trajectory API for {self._env_patience_s:g} s, "
                f"and no batch could be made: {answer.reason}",
                f"{_START_ONE}; then run this command again, and it continues from its last checkpoint. "
                "If an environment had ended, its log says why.",
            )
        if now_s - self._logged_s < _LOG_EVERY_S:
            return None
        self._logged_s = now_s
        line = f"waiting for a batch: {answer.reason}"
        if left_s is not None:
            line += f"; no environment is connected ({_START_ONE}), and this run ends in {left_s:.0f} s"
        return line
