"""preference: short pieces of writing, scored by a reward model.

The environment for RLHF: instructions without a right answer, and a reward model behind vLLM's pooling API
whose score, through a sigmoid, is the reward. If the reward model cannot be reached, that is a failure of the
grader. An empty response gets 0 without a request. There is no gold: the reward model alone defines quality.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from pydantic import Field

from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.generated import GeneratedEnv, GeneratedEnvConfig
from hermes.envs.rewards.http import RewardModel
from hermes.envs.rewards.result import RewardResult, failed
from hermes.envs.tasks.instructions import Instruction, instruction
from hermes.envs.tasks.split import Split, draw


class PreferenceConfig(GeneratedEnvConfig):
    max_agent_turns: int = Field(default=1, ge=1, description="Most model calls of one rollout.")
    max_token_length: int = Field(default=200, description="Longest answer, in tokens.")
    reward_model_url: str = Field(
        default="http://localhost:8002", description="Address of the reward model; requests go to /pooling."
    )
    reward_model_name: str = Field(default="reward", description="The reward model's name there.")


class PreferenceEnv(GeneratedEnv):
    """Short pieces of writing, scored by a reward model."""

    name = "preference"
    env_config_cls: ClassVar[Any] = PreferenceConfig
    config: PreferenceConfig

    async def setup(self) -> None:
        self._reward_model = RewardModel(self.config.reward_model_url, self.config.reward_model_name)
        await super().setup()

    def generate(self, split: Split) -> Iterator[Instruction]:
        return draw(instruction, split, self.seed_of(split))

    def format_prompt(self, item: Instruction) -> str:
        return item.text

    async def grade(self, item: Instruction, result: AgentResult, ctx: ToolContext) -> RewardResult:
        if not result.final_response.strip():
            return failed("the answer is empty")
        return await self._reward_model.grade(
            [{"role": "user", "content": item.text}, {"role": "assistant", "content": result.final_response}]
        )

    async def close(self) -> None:
        await self._reward_model.close()
        await super().close()


if __name__ == "__main__":
    PreferenceEnv.cli()
