"""counting: letters, and how many groups are in progress at the same time."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

from tests.rl.environments.letters import LettersEnv


class CountingEnv(LettersEnv):
    """Letters; HERMES_TEST_COUNT names a file for the most groups of 8 that were in progress at once."""

    name = "counting"

    async def setup(self) -> None:
        await super().setup()
        self._left: Counter[str] = Counter()
        """Rollouts that are not scored yet, by task."""
        self._most = 0

    def format_prompt(self, item: Any) -> str:
        self._left.setdefault(item["id"], 8)
        self._most = max(self._most, sum(left > 0 for left in self._left.values()))
        Path(os.environ["HERMES_TEST_COUNT"]).write_text(str(self._most))
        return super().format_prompt(item)

    async def compute_reward(self, item: Any, *about: Any) -> float:
        self._left[item["id"]] -= 1
        return await super().compute_reward(item, *about)


if __name__ == "__main__":
    CountingEnv.cli()
