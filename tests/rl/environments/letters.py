"""letters: say letters with an even code. A random model earns about half, and can learn more."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from pydantic import Field

from hermes.envs.agent.config import HermesAgentEnvConfig
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext


class LettersConfig(HermesAgentEnvConfig):
    max_agent_turns: int = Field(default=1, ge=1, description="Most model calls of one rollout.")
    max_token_length: int = Field(default=8, description="Longest answer, in tokens.")
    reward_delay_s: float = Field(default=0.0, description="Seconds that the reward takes.")
    reward_jitter_s: float = Field(default=0.0, description="Seconds that it may take longer, by chance.")


class LettersEnv(HermesAgentBaseEnv):
    """Letters with an even code; the reward is their share."""

    name = "letters"
    env_config_cls = LettersConfig
    default_toolsets = ()

    async def setup(self) -> None:
        self.count = 0

    async def get_next_item(self) -> Any:
        self.count += 1
        return {"id": str(self.count)}

    def format_prompt(self, item: Any) -> str:
        return f"Say letters. Item {item['id']}."

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        await asyncio.sleep(self.config.reward_delay_s + self.config.reward_jitter_s * random.random())
        text = result.final_response
        return sum(ord(letter) % 2 == 0 for letter in text) / len(text) if text else 0.0


if __name__ == "__main__":
    LettersEnv.cli()
