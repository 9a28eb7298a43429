"""worthless: letters that are never worth anything."""

from __future__ import annotations

from typing import Any

from tests.rl.environments.letters import LettersEnv


class WorthlessEnv(LettersEnv):
    """Letters, whatever they are worth, for a reward of 0."""

    name = "worthless"

    async def compute_reward(self, *about: Any) -> float:
        return 0.0


if __name__ == "__main__":
    WorthlessEnv.cli()
