"""Drops every rollout in which fewer than ten tokens are trained, as several public environments do."""

from __future__ import annotations

from typing import Any

from atroposlib.envs.base import APIServerConfig, BaseEnv, BaseEnvConfig, ScoredDataGroup


class TrainedOnlyEnv(BaseEnv):
    name = "trained_only"

    @classmethod
    def config_init(cls) -> tuple[BaseEnvConfig, list[APIServerConfig]]:
        return BaseEnvConfig(group_size=2, use_wandb=False), [APIServerConfig(model_name="fake", api_key="x")]

    async def setup(self) -> None:
        self.items = 0

    async def get_next_item(self) -> int:
        self.items += 1
        return self.items

    async def collect_trajectories(self, item: int) -> tuple[Any, list[Any]]:
        messages = [{"role": "user", "content": f"item {item}"}]
        async with self.server.managed_server(tokenizer=self.tokenizer) as managed:
            await managed.chat_completion(messages=messages, n=self.config.group_size, max_tokens=50)
            nodes = managed.get_state()["nodes"]
        group = ScoredDataGroup(tokens=[], masks=[], scores=[], inference_logprobs=[])
        for node in nodes:
            if len([token for token in node.masked_tokens if token != -100]) < 10:
                continue
            group["tokens"].append(node.tokens)
            group["masks"].append(node.masked_tokens)
            group["scores"].append(float(len(node.tokens)))
            group["inference_logprobs"].append(node.logprobs)
        return (group if group["tokens"] else None), []

    async def evaluate(self, *args: Any, **kwargs: Any) -> None:
        pass


if __name__ == "__main__":
    TrainedOnlyEnv.cli()
