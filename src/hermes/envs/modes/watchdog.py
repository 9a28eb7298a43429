"""Notices that a serving environment waits for something that does not come: a trainer, a model, an item."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING

from hermes.envs.failures import EnvironmentRunError
from hermes.envs.modes import pacing

if TYPE_CHECKING:
    from hermes.envs.base import BaseEnv

logger = logging.getLogger(__name__)

_SAY_EVERY_S = 60.0
_DRY_S = 10.0
"""How long get_next_item may return None, with nothing in the making, before that counts as the end."""


class Watchdog:
    """Ends a run in which nothing has happened for too long, and says what it waits for."""

    def __init__(self, env: BaseEnv) -> None:
        self._env = env
        self._step = env.curr_step
        self._moved_s = self._model_s = self._said_s = time.monotonic()

    def out_of_items(self) -> bool:
        """Whether the environment has had no item for a while, and nothing is in the making."""
        env = self._env
        if env.dry_since_s is None or env.workers or env.retries:
            return False
        return time.monotonic() - env.dry_since_s > _DRY_S

    def look(self) -> None:
        env, now_s = self._env, time.monotonic()
        paused = pacing.must_pause(env.config, env.status_dict, env.derived_batch_size)
        if env.curr_step != self._step or not paused:
            self._step, self._moved_s = env.curr_step, now_s
        if env.server.any_healthy() or paused:
            self._model_s = now_s
        self._check(
            now_s - self._moved_s,
            env.config.trainer_patience_s,
            "the trainer has taken no batch",
            "See what the trainer is doing; the groups that wait for it are with the trajectory API.",
        )
        self._check(
            now_s - self._model_s,
            env.config.outage_patience_s,
            "no model server has answered",
            "Start it again, or set --openai.base_url to one that runs.",
        )

    def _check(self, waited_s: float, allowed_s: float, what: str, hint: str) -> None:
        if waited_s > allowed_s:
            raise EnvironmentRunError(f"{what} for {allowed_s:g} s, at step {self._env.curr_step}.", hint)
        if waited_s > _SAY_EVERY_S and time.monotonic() - self._said_s > _SAY_EVERY_S:
            self._said_s = time.monotonic()
            logger.warning("%s for %d s; waiting", what, waited_s)
