"""slow: letters whose worth takes seconds to tell."""

from __future__ import annotations

import asyncio
from typing import Any

from tests.rl.environments.letters import LettersEnv


class SlowEnv(LettersEnv):
    """Letters, scored after a while."""

    name = "slow"

    async def compute_reward(self, *about: Any) -> float:
        await asyncio.sleep(5)
        return await super().compute_reward(*about)


if __name__ == "__main__":
    SlowEnv.cli()
