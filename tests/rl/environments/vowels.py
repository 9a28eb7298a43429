"""vowels: say vowels. A second task for runs on several environments."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from hermes.envs.agent.config import HermesAgentEnvConfig
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext


class VowelsConfig(HermesAgentEnvConfig):
    max_agent_turns: int = Field(default=1, ge=1, description="Most model calls of one rollout.")
    max_token_length: int = Field(default=6, description="Longest answer, in tokens.")
    bonus: float = Field(default=0.0, description="Added to every reward below it.")


class VowelsEnv(HermesAgentBaseEnv):
    """Bytes below 128; the reward is their share."""

    name = "vowels"
    env_config_cls = VowelsConfig
    default_toolsets = ()

    async def setup(self) -> None:
        self.count = 0

    async def get_next_item(self) -> Any:
        self.count += 1
        return {"id": f"v{self.count}"}

    def format_prompt(self, item: Any) -> str:
        return f"Say vowels. Item {item['id']}."

    async def compute_reward(self, item: Any, result: AgentResult, ctx: ToolContext) -> float:
        text = result.final_response
        share = sum(letter.isascii() for letter in text) / len(text) if text else 0.0
        return max(share, self.config.bonus)


if __name__ == "__main__":
    VowelsEnv.cli()
