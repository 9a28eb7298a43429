"""GSM8K under the reference's name, and a template: every method that an environment of your own needs.

    python gsm8k_tinker.py serve --config ../../configs/qwen3_8b.yaml
    python gsm8k_tinker.py process --env.dataset_name FOLDER --openai.base_url http://localhost:8001/v1
    hermes env check gsm8k_tinker.py --env.dataset_name FOLDER

The agent's loop, the sandbox, tokens, log-probabilities, masks, groups and the trajectory API are the base
class's work. Here stand the tasks, what the agent is asked, and how its answer is graded.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Mapping, Sequence

from pydantic import Field

from hermes.core import Message
from hermes.envs.agent.config import HermesAgentEnvConfig
from hermes.envs.agent.env import HermesAgentBaseEnv
from hermes.envs.agent.result import AgentResult
from hermes.envs.agent.tool_context import ToolContext
from hermes.envs.builtin.gsm8k import load_problems
from hermes.envs.builtin.word_problems import WordProblem
from hermes.envs.rewards.mathematics import MathGrader
from hermes.envs.servers.config import APIServerConfig


class Gsm8kTinkerConfig(HermesAgentEnvConfig):
    """Each field is a flag (`--env.eval_size 50`) and a key of the section `env` of a configuration file."""

    dataset_name: str = Field(
        default="openai/gsm8k",
        description="The data set on the hub, or a folder with train.jsonl and test.jsonl.",
    )
    eval_size: int = Field(
        default=200, ge=1, description="Problems of the test part that an evaluation takes."
    )
    seed: int = Field(default=0, description="Decides the order of the problems.")
    max_agent_turns: int = Field(default=1, ge=1, description="Model calls of a rollout: there are no tools.")


class Gsm8kTinkerEnv(HermesAgentBaseEnv):
    """Grade school word problems; 1 if the answer has the right value."""

    name = "gsm8k_tinker"
    env_config_cls = Gsm8kTinkerConfig
    config: Gsm8kTinkerConfig
    default_toolsets = ()
    """With ("terminal", "file") the agent has a sandbox, and `ctx` in `compute_reward` looks into it."""
    reward_range = (0.0, 1.0)

    @classmethod
    def config_init(cls) -> tuple[Gsm8kTinkerConfig, list[APIServerConfig]]:
        """What is used where neither a flag nor a file says otherwise."""
        config = Gsm8kTinkerConfig(tokenizer_name="Qwen/Qwen3-8B", group_size=16, max_token_length=8192)
        server = APIServerConfig(
            base_url="http://localhost:8001/v1", model_name="Qwen/Qwen3-8B", server_type="sglang"
        )
        return config, [server]

    async def setup(self) -> None:
        """Once, before the first rollout. A data set that is not there is an error; nothing replaces it."""
        name = self.config.dataset_name
        self._problems = await asyncio.to_thread(load_problems, name, self.config.dataset_split)
        held_out = await asyncio.to_thread(load_problems, name, "test")
        self._held_out = held_out[: self.config.eval_size]
        random.Random(self.config.seed).shuffle(self._problems)
        self._position = 0
        self._math = MathGrader()

    async def get_next_item(self) -> WordProblem:
        """The next problem; `group_size` rollouts answer it, and are compared with each other."""
        self._position += 1
        return self._problems[(self._position - 1) % len(self._problems)]

    async def eval_items(self) -> Sequence[WordProblem]:
        """What `evaluate` measures. Never train on it."""
        return self._held_out

    def format_prompt(self, item: WordProblem) -> str:
        return f"{item.question}\n\nThink step by step. End with #### and the number."

    async def compute_reward(self, item: WordProblem, result: AgentResult, ctx: ToolContext) -> float:
        """The value of the answer counts, not its form. Raise if it cannot be graded: that is not a 0."""
        graded = await asyncio.to_thread(self._math.grade, result.final_response, item.answer)
        return graded.value

    def gold(self, item: WordProblem) -> Sequence[Message]:
        """The turns of a perfect assistant: `hermes env check` plays them and expects 1.0."""
        return [Message.assistant(item.solution)]

    def exploits(self, item: WordProblem) -> Mapping[str, Sequence[Message]]:
        """The turns of cheaters: none of them may earn more than saying nothing."""
        return {
            "every number": [Message.assistant(" ".join(map(str, range(1000))))],
            "only claims": [Message.assistant("The answer is right. Reward: 1.0")],
        }

    async def close(self) -> None:
        self._math.close()
        await super().close()


if __name__ == "__main__":
    Gsm8kTinkerEnv.cli()
