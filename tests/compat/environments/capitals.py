"""Capitals: an agent environment with the imports and calls of the reference's guide."""

from __future__ import annotations

import os
import random
import time
import uuid
from typing import Any

from atroposlib.envs.base import APIServerConfig
from environments.agent_loop import AgentResult
from environments.hermes_base_env import HermesAgentBaseEnv, HermesAgentEnvConfig
from environments.tool_context import ToolContext
from pydantic import Field

SAMPLES = [
    {"question": f"What is the capital of {land}?", "answer": town}
    for land, town in (("France", "Paris"), ("Peru", "Lima"), ("Kenya", "Nairobi"), ("Japan", "Tokyo"))
]


class CapitalsConfig(HermesAgentEnvConfig):
    eval_size: int = Field(default=2, description="Held-out questions.")


class CapitalsEnv(HermesAgentBaseEnv):
    """Write the capital into a file."""

    name = "capitals"
    env_config_cls = CapitalsConfig
    default_toolsets = ["file"]  # noqa: RUF012  as such files have it

    @classmethod
    def config_init(cls) -> tuple[CapitalsConfig, list[APIServerConfig]]:
        config = CapitalsConfig(
            enabled_toolsets=["file"], max_agent_turns=4, system_prompt="Use your tools.", group_size=2
        )
        key = os.getenv("OPENROUTER_API_KEY", "x")
        server = APIServerConfig(
            base_url="http://localhost:1/v1",
            model_name="m",
            server_type="openai",
            api_key=key,
            health_check=False,
        )
        return config, [server]

    async def setup(self) -> None:
        items = list(SAMPLES)
        random.Random(0).shuffle(items)
        self._eval_items, self._items = items[:2], items[2:]
        self._index = 0
        self._reward_buffer: list[float] = []

    async def get_next_item(self) -> dict[str, str]:
        item = self._items[self._index % len(self._items)]
        self._index += 1
        return item

    def format_prompt(self, item: dict[str, str]) -> str:
        return f"Research this question: {item['question']}"

    async def compute_reward(self, item: dict[str, str], result: AgentResult, ctx: ToolContext) -> float:
        final_response, tools_used = "", []
        for msg in reversed(result.messages):
            if msg.get("role") == "assistant" and msg.get("content") and not final_response:
                final_response = msg["content"]
            for call in msg.get("tool_calls") or []:
                fn = call.get("function", {}) if isinstance(call, dict) else {}
                tools_used.append(fn.get("name", ""))
        checked = ctx.terminal("cat answer.txt")
        correct = checked["exit_code"] == 0 and checked["output"].strip() == item["answer"]
        reward = 0.6 * correct + 0.2 * ("write_file" in tools_used) + 0.2 * (result.turns_used <= 3)
        self._reward_buffer.append(reward)
        return reward if result.finished_naturally and not result.tool_errors else 0.0

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        from environments.agent_loop import HermesAgentLoop
        from environments.tool_context import ToolContext

        start_time = time.time()
        tools, valid_names = self._resolve_tools_for_group()
        samples = []
        for item in self._eval_items[: self.config.eval_size]:
            task_id = str(uuid.uuid4())
            messages = []
            if self.config.system_prompt:
                messages.append({"role": "system", "content": self.config.system_prompt})
            messages.append({"role": "user", "content": self.format_prompt(item)})
            agent = HermesAgentLoop(
                server=self.server,
                tool_schemas=tools,
                valid_tool_names=valid_names,
                max_turns=self.config.max_agent_turns,
                task_id=task_id,
                temperature=0.0,
                max_tokens=self.config.max_token_length,
                extra_body=self.config.extra_body,
            )
            result = await agent.run(messages)
            ctx = ToolContext(task_id)
            try:
                reward = await self.compute_reward(item, result, ctx)
            finally:
                ctx.cleanup()
            samples.append({"prompt": self.format_prompt(item), "reward": reward, "turns": result.turns_used})
        mean = sum(sample["reward"] for sample in samples) / len(samples)
        await self.evaluate_log(
            metrics={"eval/mean_reward": mean}, samples=samples, start_time=start_time, end_time=time.time()
        )

    async def wandb_log(self, wandb_metrics: dict[str, Any] | None = None) -> None:
        metrics = dict(wandb_metrics or {})
        if self._reward_buffer:
            metrics["train/mean_reward"] = sum(self._reward_buffer) / len(self._reward_buffer)
            self._reward_buffer.clear()
        await super().wandb_log(metrics)


if __name__ == "__main__":
    CapitalsEnv.cli()
