"""An environment of openenv-core: a number from 1 to 9 is guessed, with two kinds of action."""

from __future__ import annotations

import os
import signal
import time
from typing import Literal

from openenv.core.env_server import Action, Environment, Observation, State, create_app


class GuessAction(Action):
    """Guesses the number."""

    number: int


class GuessObservation(Observation):
    hint: str
    left: int = 3


class GuessEnvironment(Environment[GuessAction, GuessObservation, State]):
    SUPPORTS_CONCURRENT_SESSIONS = True

    def reset(self, seed: int | None = None, episode_id: str | None = None, **_: object) -> GuessObservation:
        self._state = State(episode_id=episode_id, step_count=0)
        self._number = (seed or 0) % 9 + 1
        return GuessObservation(hint=f"a number from 1 to 9, with seed {seed}")

    def step(self, action: GuessAction, timeout_s: float | None = None, **_: object) -> GuessObservation:
        self._state.step_count += 1
        acts: dict[int, Literal["die", "hang", "raise"]] = {100: "die", 101: "hang", 102: "raise"}
        match acts.get(action.number):
            case "die":
                os.kill(os.getpid(), signal.SIGKILL)
            case "hang":
                time.sleep(600)
            case "raise":
                raise RuntimeError("the board is broken")
        left = 3 - self._state.step_count
        right = action.number == self._number
        hint = "right" if right else "higher" if action.number < self._number else "lower"
        reward = 1.0 if right else -0.25
        return GuessObservation(hint=hint, left=left, reward=reward, done=right or not left)

    @property
    def state(self) -> State:
        return self._state


app = create_app(GuessEnvironment, GuessAction, GuessObservation, max_concurrent_envs=2)
